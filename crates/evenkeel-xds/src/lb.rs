//! From the control plane's policies to ours (A52).

/// How policies of the control plane become policies of the registry, by message name.
#[derive(Clone, Debug, Default)]
pub struct Converters {}

impl Converters {
    /// Every converter that is built in.
    pub fn standard() -> Converters {
        Converters {}
    }
}
