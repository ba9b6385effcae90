def sentence_pairs(seed): raise NotImplementedError
