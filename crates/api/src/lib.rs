//! Karpenter's API kinds, labels, conditions and hashes, and the CRDs generated from them.
