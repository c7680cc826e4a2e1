"""All that isn't the product: what is timed and counted, what repeats a paper, what makes a data file, and what a release needs.

* ``timed`` and ``counted`` are the benches, one question a file: ``python -m bench NAME``. What is timed needs an idle machine.
* ``papers`` repeats the papers' experiments, ``tasks`` has the questions and scores that they share.
* ``data`` makes the package's data files.
* ``results`` are kept runs (``bench.record``, ``bench.papers.kept``); ``bench.page`` makes tables of them.
* ``release`` is what a release needs.

Rooms import those below them: papers, timed, data, counted, and then what lies beside this file. The package imports nothing of this.
"""
