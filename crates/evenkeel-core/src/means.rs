//! How connections are made beside their address: something that only the driver understands.
//!
//! A cluster may want its connections made by means of its own, such as secured by its own rules. What that is the core
//! does not know. It sees to it that a subchannel is used only where the same means hold, and shows them to whoever dials.
//! Means are part of what a subchannel is known by: other means are another connection.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::fast_map::FastMap;
use crate::{Address, Endpoint};

/// How connections are made. Clones share; two are equal if what they hold is equal, and the host name is the same.
///
/// ```
/// use evenkeel_core::Means;
///
/// let means = Means::new("by carrier pigeon");
/// assert_eq!(means, Means::new("by carrier pigeon"));
/// assert_eq!(means.get::<&str>(), Some(&"by carrier pigeon"));
/// ```
#[derive(Clone)]
pub struct Means(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    what: Arc<dyn What>,
    by_host_name: bool,
    host_name: Option<Arc<str>>,
}

impl Means {
    /// Means that hold for all endpoints of a cluster alike. Connections of clusters with equal means are shared.
    pub fn new(what: impl Hash + Eq + fmt::Debug + Send + Sync + 'static) -> Means {
        Means(Arc::new(Inner { what: Arc::new(what), by_host_name: false, host_name: None }))
    }

    /// Whether an endpoint's host name, if it has one, matters to how connections to it are made.
    #[must_use]
    pub fn by_host_name(mut self, matters: bool) -> Means {
        Arc::make_mut(&mut self.0).by_host_name = matters;
        self
    }

    /// What was given, if it is of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.what.as_any().downcast_ref()
    }

    /// The host name of the endpoint that the subchannel is for, where it matters.
    pub fn host_name(&self) -> Option<&Arc<str>> {
        self.0.host_name.as_ref()
    }

    fn at(&self, host_name: &Arc<str>) -> Means {
        Means(Arc::new(Inner { host_name: Some(host_name.clone()), ..(*self.0).clone() }))
    }
}

impl PartialEq for Means {
    fn eq(&self, other: &Means) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || a.host_name == b.host_name
                && a.by_host_name == b.by_host_name
                && (Arc::ptr_eq(&a.what, &b.what) || a.what.is_equal(b.what.as_any()))
    }
}

impl Eq for Means {}

impl Hash for Means {
    fn hash<H: Hasher>(&self, mut state: &mut H) {
        self.0.what.add_to(&mut state);
        self.0.host_name.hash(state);
    }
}

impl fmt::Debug for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.what.fmt(f)?;
        match &self.0.host_name {
            Some(name) => write!(f, " at {name:?}"),
            None => Ok(()),
        }
    }
}

/// Anything that can be compared, hashed and shown.
trait What: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn is_equal(&self, other: &dyn Any) -> bool;
    fn add_to(&self, state: &mut dyn Hasher);
}

impl<T: Hash + Eq + fmt::Debug + Send + Sync + 'static> What for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn add_to(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}

/// The means of a cluster: the same for all its addresses, unless host names matter.
#[derive(Debug)]
pub struct ClusterMeans {
    /// Of endpoints without a host name, and of all if names do not matter.
    common: Means,
    named: FastMap<Address, Means>,
}

impl ClusterMeans {
    /// The means of a cluster with these endpoints. Of several endpoints with the same address the first counts.
    pub fn new<'e>(means: Means, endpoints: impl IntoIterator<Item = &'e Endpoint>) -> ClusterMeans {
        let mut named = FastMap::default();
        if means.0.by_host_name {
            let mut by_name = FastMap::default();
            for endpoint in endpoints {
                let means = match endpoint.shared_hostname() {
                    Some(name) => by_name.entry(name.clone()).or_insert_with(|| means.at(name)),
                    None => &means,
                };
                for address in endpoint.addresses().iter() {
                    named.entry(address.clone()).or_insert_with(|| means.clone());
                }
            }
        }
        ClusterMeans { common: means, named }
    }

    /// Whether they are of these means and do not depend on endpoints.
    pub(crate) fn are_always(&self, means: &Means) -> bool {
        self.common == *means && !means.0.by_host_name
    }

    /// The means for an address.
    pub fn of(&self, address: &Address) -> &Means {
        self.named.get(address).unwrap_or(&self.common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_what_they_hold() {
        let one = Means::new(("pay", 1));
        assert_eq!(one, Means::new(("pay", 1)));
        assert_ne!(one, Means::new(("pay", 2)));
        assert_ne!(one, Means::new("pay"));
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
        let names = |means: &ClusterMeans| {
            ["1", "2", "3", "4", "5", "6"].map(|at| means.of(&at.into()).host_name().map(ToString::to_string))
        };
        let means = Means::new("pay");
        let alike = ClusterMeans::new(means.clone(), &endpoints);
        assert_eq!(names(&alike), [const { None }; 6]);
        assert!(alike.are_always(&means));
        let apart = ClusterMeans::new(means.clone().by_host_name(true), &endpoints);
        let [a, b] = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(names(&apart), [a.clone(), a, b, None, None, None]);
        assert!(!apart.are_always(&means.by_host_name(true)));
    }
}
