//! The world around Karpenter, simulated.
