"""How many workers a search needs, how long it takes and what that costs: measured for a minute, then simulated.

`values` are the words of a plan. A pilot (`pilot`) runs a few batches of a few configurations on real workers
(`configurations` chooses them), and `profile` makes unit times of what it measured. `options` lists the ways to run the
search, `dry_runs` runs the real search by each of them in virtual time, `planner` compares them, `plan` shows them.
"""
