"""Pure rules of placement: what exists, what is asked for, what is given."""
