//! How much a control plane may ask of us.

/// What is accepted from a control plane. A limit that is hit spoils the resource, with the limit in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdsLimits {
    /// The bytes of one response.
    pub response_bytes: usize,
    /// The resources of one response.
    pub resources: usize,
    /// The endpoints of one cluster, all localities together.
    pub endpoints: usize,
    /// The routes of one route configuration, all virtual hosts together.
    pub routes: usize,
    /// The bytes of a name: of a resource, a cluster, a header.
    pub name_bytes: usize,
    /// The memory of one compiled regular expression.
    pub regex_bytes: usize,
    /// The bytes of the text that says what is wrong with a response.
    pub error_bytes: usize,
}

impl Default for XdsLimits {
    fn default() -> XdsLimits {
        XdsLimits {
            response_bytes: 64 << 20,
            resources: 100_000,
            endpoints: 1_000_000,
            routes: 100_000,
            name_bytes: 4 << 10,
            regex_bytes: 10 << 20,
            error_bytes: 4 << 10,
        }
    }
}
