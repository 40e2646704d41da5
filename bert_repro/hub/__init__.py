"""From a trained model to a folder that anyone loads: `export` writes it, `card` describes it, `push` uploads it."""
