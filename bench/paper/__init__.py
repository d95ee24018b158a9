"""The figures of Hoplite's paper (SIGCOMM 2021) at emulated scale, in one report that needs nothing else.

`plan` says what is measured for each figure, `running` does it, `journal` keeps every result as it comes, `pictures`
draws them and `report` puts everything into one HTML file.
"""
