//! An xDS control plane to embed: a mesh in YAML or code, served to any xDS client.

#![forbid(unsafe_code)]
