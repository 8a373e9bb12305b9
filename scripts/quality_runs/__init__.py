"""What scripts/quality runs: rows.py says what is compared, model.py keeps what is known of a model, fitting.py makes
bundles, and one file for each kind of run (kl.py, growth.py, shift.py, own_text.py) measures and prints its table."""
