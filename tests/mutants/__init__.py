"""The tests are tested: deliberately broken drivers, cores, steps and workers, each caught by name.

A mutant replaces one function of the product by a wrong one; its docstring says what that breaks. Beside it stands who
must catch it: a case of the conformance kit, a scene played by a worker in virtual time, the simulation, or, for
PostgreSQL's statements, a race on a real server. A mutant that nothing catches is a missing test.

To add one, write the wrong function below `@mutant((owner, "name"), by="catcher")` in the file of its subject;
`mutant.py` says what the function is given. The kind of the registry in that file decides where a case of the kit runs:
`sqlite` on a file, `step` on tests/drivers/kv, `redis`, `postgres` and `nats` on a server, others in memory. Mutants of
kind `direct` are caught by tests of the driver. A new registry goes into `REGISTRIES` of `catching.py`. If no test
catches the mutant, add a case to the kit or a scene to `scenes`; a scene that catches no mutant is refused.

`pytest tests/mutants` asks the named catchers only and prints who caught what;
`PYTHONPATH=tests python -m mutants` lets every case of the kit and every scene try every mutant.
"""
