"""Pure rules of accounting: who may have what, who used what."""
