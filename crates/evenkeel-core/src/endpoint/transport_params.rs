//! Transport parameters of a cluster, opaque to the core.
//!
//! A cluster may require connections with parameters of its own, such as TLS settings. Only the driver interprets them. The core
//! uses a subchannel only for equal parameters, and passes them to the driver. They are part of a subchannel's key: different
//! parameters mean different connections.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::collections::fast_map::FastMap;
use crate::{Address, Endpoint};

/// Parameters for new connections. Clones share their data; two are equal if their contents and host names are equal.
///
/// ```
/// use evenkeel_core::TransportParams;
///
/// let params = TransportParams::new("by carrier pigeon");
/// assert_eq!(params, TransportParams::new("by carrier pigeon"));
/// assert_eq!(params.get::<&str>(), Some(&"by carrier pigeon"));
/// ```
#[derive(Clone)]
pub struct TransportParams(Arc<TransportParamsInner>);

#[derive(Clone)]
struct TransportParamsInner {
    params: Arc<dyn DynParams>,
    by_host_name: bool,
    host_name: Option<Arc<str>>,
}

impl TransportParams {
    /// Creates parameters for all endpoints of a cluster. Clusters with equal parameters share connections.
    pub fn new(params: impl Hash + Eq + fmt::Debug + Send + Sync + 'static) -> TransportParams {
        TransportParams(Arc::new(TransportParamsInner {
            params: Arc::new(params),
            by_host_name: false,
            host_name: None,
        }))
    }

    /// Sets whether the endpoint's host name is part of the parameters.
    #[must_use]
    pub fn by_host_name(mut self, matters: bool) -> TransportParams {
        Arc::make_mut(&mut self.0).by_host_name = matters;
        self
    }

    /// Returns the contents, if they have this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.params.as_any().downcast_ref()
    }

    /// Returns the host name of the endpoint, if it is part of the parameters.
    pub fn host_name(&self) -> Option<&Arc<str>> {
        self.0.host_name.as_ref()
    }

    fn at(&self, host_name: &Arc<str>) -> TransportParams {
        TransportParams(Arc::new(TransportParamsInner {
            host_name: Some(host_name.clone()),
            ..(*self.0).clone()
        }))
    }
}

impl PartialEq for TransportParams {
    fn eq(&self, other: &TransportParams) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || a.host_name == b.host_name
                && a.by_host_name == b.by_host_name
                && (Arc::ptr_eq(&a.params, &b.params) || a.params.dyn_eq(b.params.as_any()))
    }
}

impl Eq for TransportParams {}

impl Hash for TransportParams {
    fn hash<H: Hasher>(&self, mut state: &mut H) {
        // `by_host_name` may be left out of the hash: equal values still have equal hashes.
        self.0.params.hash_into(&mut state);
        self.0.host_name.hash(state);
    }
}

impl fmt::Debug for TransportParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.params.fmt(f)?;
        match &self.0.host_name {
            Some(name) => write!(f, " at {name:?}"),
            None => Ok(()),
        }
    }
}

/// Value that can be compared, hashed and formatted.
trait DynParams: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn dyn_eq(&self, other: &dyn Any) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
}

impl<T: Hash + Eq + fmt::Debug + Send + Sync + 'static> DynParams for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn dyn_eq(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}

/// Parameters of a cluster, by address if host names are part of them.
#[derive(Debug)]
pub struct ClusterTransport {
    /// Parameters of endpoints without a host name, and of all endpoints if host names are not part of them.
    common: TransportParams,
    named: FastMap<Address, TransportParams>,
}

impl ClusterTransport {
    /// Creates the parameters of a cluster with these endpoints. If several share an address, the first applies.
    pub fn new<'e>(
        transport: TransportParams,
        endpoints: impl IntoIterator<Item = &'e Endpoint>,
    ) -> ClusterTransport {
        let mut named = FastMap::default();
        if transport.0.by_host_name {
            let mut by_name = FastMap::default();
            for endpoint in endpoints {
                let transport = match endpoint.shared_hostname() {
                    // Endpoints with the same host name share one value, so that later comparisons compare pointers.
                    Some(name) => by_name.entry(name.clone()).or_insert_with(|| transport.at(name)),
                    None => &transport,
                };
                for address in endpoint.addresses().iter() {
                    named.entry(address.clone()).or_insert_with(|| transport.clone());
                }
            }
        }
        ClusterTransport { common: transport, named }
    }

    /// Returns true if they have these contents and do not depend on the endpoints.
    pub(crate) fn is_fixed(&self, transport: &TransportParams) -> bool {
        self.common == *transport && !transport.0.by_host_name
    }

    /// Returns the parameters for an address.
    pub fn of(&self, address: &Address) -> &TransportParams {
        self.named.get(address).unwrap_or(&self.common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_what_they_hold() {
        let one = TransportParams::new(("pay", 1));
        assert_eq!(one, TransportParams::new(("pay", 1)));
        assert_ne!(one, TransportParams::new(("pay", 2)));
        assert_ne!(one, TransportParams::new("pay"));
        assert_ne!(one, one.clone().by_host_name(true));
        assert_eq!(one.get::<(&str, i32)>(), Some(&("pay", 1)));
        assert_eq!(one.get::<&str>(), None);
        assert_eq!(format!("{:?}", one.at(&"a".into())), r#"("pay", 1) at "a""#);
    }

    #[test]
    fn host_names_matter_where_they_are_said_to() {
        let endpoints = [
            Endpoint::new(["1", "2"]).with_hostname("a"),
            Endpoint::at("3").with_hostname("b"),
            Endpoint::new(["4", "1"]),
            Endpoint::at("5").with_hostname(""),
        ];
        let names = |transport: &ClusterTransport| {
            ["1", "2", "3", "4", "5", "6"]
                .map(|at| transport.of(&at.into()).host_name().map(ToString::to_string))
        };
        let transport = TransportParams::new("pay");
        let alike = ClusterTransport::new(transport.clone(), &endpoints);
        assert_eq!(names(&alike), [const { None }; 6]);
        assert!(alike.is_fixed(&transport));
        let apart = ClusterTransport::new(transport.clone().by_host_name(true), &endpoints);
        let [a, b] = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(names(&apart), [a.clone(), a, b, None, None, None]);
        assert!(!apart.is_fixed(&transport.by_host_name(true)));
    }
}
