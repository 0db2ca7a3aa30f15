"""The tests are tested: deliberately broken drivers, cores, steps and workers, each caught by name.

A mutant replaces one function of the product by a wrong one; its docstring says what that breaks. Beside it stands who
must catch it: a case of the conformance kit, a scene played by a worker in virtual time, the simulation, or, for
PostgreSQL's statements, a race on a real server. A mutant that nothing catches is a missing test.

`pytest tests/mutants` asks the named catchers only and prints who caught what;
`PYTHONPATH=tests python -m mutants` lets every case of the kit and every scene try every mutant.
"""
