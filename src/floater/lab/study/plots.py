"""The kinds of plot, which the command line lists without importing what draws them."""

PLOTS = {
    "vectors": "heat map of the position vectors (Liu et al. 2020, Figure 3)",
    "permuted_vectors": (
        "heat map of the position vectors, learned dimensions permuted (Liu et al. 2020, Figure 3)"
    ),
    "similarity": "cosine similarity of positions (Dufter et al. 2022, Figure 10)",
    "smoothness": "norm and smoothness along the sequence",
    "attention": "attention by position alone, per head (Ke et al. 2021, Figure 5)",
    "same_word": "attention logits where every token is the same word, per head",
    "terms": "logits of units and positions by units and positions (Dufter et al. 2022, equation 4)",
    "flow": "the flow as curves over time",
    "probe": "how well a linear probe reads the position",
    "reordering": "whether a moved word is detected (Yang et al. 2019); needs a text",
}
"""Descriptions of the kinds of plot, by name; `floater.lab.study.analyses.kinds` draws them."""
FIGURES = {
    "block": "Figure 1: an encoder block without positions",
    "biases": "Figure 2: absolute and relative biases of the attention matrix",
    "axial": "Figure 3: axial position embeddings",
    "untied": "Figure 4: biases of positions from which [CLS] is untied",
    "recurrent": "Figure 5: recurrence and relative positions in a Transformer",
    "dot_products": "Figure 6: dot products of sinusoids, without and with random projections",
    "tree": "Figure 7: relative positions in a sentence and in its dependency tree",
    "graph": "Figure 8: relative positions in a graph, by shortest paths",
    "similarity": "Figure 10: cosine similarity of sinusoids",
}
"""Figures of Dufter et al. 2022 by name; `floater.lab.study.analyses.survey_figures` draws them."""
