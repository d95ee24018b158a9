"""How settings are declared, found and checked. What they are is declared by whoever uses them: the cluster's by the
protocol, links by the transports, and all of them together by `runtime.settings`.

`kinds` says what a value may be, `reading` collects values from a TOML file, the environment and arguments, and
`toml_lines` knows on which line of a file a key stands. `kinds` is pure, so that the protocol can use it.
"""
