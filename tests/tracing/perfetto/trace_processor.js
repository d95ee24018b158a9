// Runs Perfetto's trace processor, as its page in the browser does, and passes messages between it and this process's
// standard streams, each behind its length. Arguments: the folder with engine_bundle.js and the WebAssembly beside it.
// The bundle is a worker of a page: it gets what it looks for in one, and nothing of node.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

class XMLHttpRequest {
    open(method, url) {
        this.url = url;
    }
    send() {
        const data = fs.readFileSync(path.join(folder, path.basename(this.url)));
        this.status = 200;
        this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
    }
}

const scope = {
    XMLHttpRequest,
    console: { log: console.error, warn: console.error, error: console.error },
    performance,
    TextDecoder,
    TextEncoder,
    setTimeout,
    clearTimeout,
    crypto: globalThis.crypto,
    importScripts() {},
    WorkerGlobalScope: class {},
    location: { href: "http://localhost/engine_bundle.js" },
};
scope.self = scope.globalThis = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope);

// It checks what it gets with instanceof, which knows the types of its own realm only.
const Bytes = vm.runInContext("Uint8Array", scope);

const port = {
    postMessage(reply) {
        const length = Buffer.alloc(4);
        length.writeUInt32LE(reply.length);
        fs.writeSync(1, length);
        for (let at = 0; at < reply.length; ) at += fs.writeSync(1, reply, at);
    },
};
scope.onmessage({ data: port });

let waiting = Buffer.alloc(0);
process.stdin.on("data", (data) => {
    waiting = Buffer.concat([waiting, data]);
    while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32LE()) {
        const end = 4 + waiting.readUInt32LE();
        port.onmessage({ data: new Bytes(waiting.subarray(4, end)) });
        waiting = waiting.subarray(end);
    }
});
