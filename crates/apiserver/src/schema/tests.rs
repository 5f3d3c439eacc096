//! Behaviour of schemas on whole objects; every expectation was seen on kube-apiserver 1.36.
