//! Reads clusters and their endpoints from a YAML tree.

use std::net::SocketAddr;

use super::MeshReader;
use crate::mesh::ClusterPolicy;
use crate::mesh::cluster::{
    Cluster, Endpoint, EndpointHealth, FailurePercentage, Locality, LocalitySettings, MeshClusterMembers,
    OutlierDetection, SuccessRate,
};
use crate::mesh::errors::MeshPath;
use crate::mesh::yaml::{YamlNode, YamlValue};

const WEIGHT: &str = "1 to 4294967295";

impl MeshReader {
    pub(super) fn cluster(&mut self, _: &str, node: &YamlNode, at: &MeshPath<'_>) -> Option<Cluster> {
        const KEYS: [&str; 9] = [
            "endpoints",
            "dns",
            "aggregate",
            "policy",
            "localities",
            "drops",
            "circuit_breaking",
            "outlier_detection",
            "lrs",
        ];
        let fields = self.fields(node, at, &KEYS)?;
        let members = match self.one_of((&fields, node), at, &["endpoints", "dns", "aggregate"], true) {
            Some(("endpoints", node)) => {
                let at = at.key("endpoints");
                let items = self.items(node, &at).iter().enumerate();
                let endpoints = items.filter_map(|(i, node)| self.endpoint(node, &at.index(i)));
                Some(MeshClusterMembers::Endpoints(endpoints.collect()))
            }
            Some(("dns", node)) => self.dns(node, &at.key("dns")),
            Some((key, node)) => {
                let at = at.key(key);
                let items = self.items(node, &at).iter().enumerate();
                let names = items.filter_map(|(i, node)| self.text(node, &at.index(i)));
                Some(MeshClusterMembers::Clusters(names.collect()))
            }
            None => None,
        };
        let mut cluster = Cluster::of(members.unwrap_or(MeshClusterMembers::Endpoints(Vec::new())));
        // The settings of a policy are checked with all other policies, in `check`.
        cluster.policy = fields.get("policy").map(|node| ClusterPolicy::from_json(node.to_json()));
        if let Some(node) = fields.get("localities") {
            let at = at.key("localities");
            for (key, node) in self.entries(node, &at) {
                let at = at.key(&key.text);
                let settings = self.locality_settings(node, &at);
                match Locality::parse(&key.text) {
                    Some(locality) => {
                        cluster.localities.extend(settings.map(|settings| (locality, settings)));
                    }
                    None => self.push_error(key.position, &at, LOCALITY),
                }
            }
        }
        if let Some(node) = fields.get("drops") {
            let at = at.key("drops");
            for (key, node) in self.entries(node, &at) {
                let share = self.share(node, &at.key(&key.text));
                cluster.drops.extend(share.map(|share| (key.text.clone(), share)));
            }
        }
        cluster.max_requests = self.field(&fields, at, "circuit_breaking", |reader, node, at| {
            let fields = reader.fields(node, at, &["max_requests"])?;
            if fields.get("max_requests").is_none() {
                reader.push_error(node.position, at, "expected max_requests");
            }
            reader.field(&fields, at, "max_requests", |reader, node, at| {
                reader.integer(node, at, "0 to 4294967295")
            })
        });
        cluster.outlier_detection =
            self.field(&fields, at, "outlier_detection", MeshReader::outlier_detection);
        cluster.lrs = self.flag(&fields, at, "lrs");
        Some(cluster)
    }

    /// Reads a host name with its port.
    fn dns(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<MeshClusterMembers> {
        let text = self.text(node, at)?;
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let is_host = |host: &str| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"[]:/@".contains(c))
        };
        match parts {
            Some((host, port)) if port > 0 && is_host(host) => {
                Some(MeshClusterMembers::Dns { host: host.to_owned(), port })
            }
            _ => {
                self.push_expected("HOST:PORT", node, at);
                None
            }
        }
    }

    /// Reads an endpoint: an address, or a mapping with further settings.
    fn endpoint(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<Endpoint> {
        const KEYS: [&str; 8] =
            ["address", "addresses", "name", "weight", "locality", "priority", "health", "hash_key"];
        if !matches!(node.value, YamlValue::Mapping(_)) {
            return self.address_or_host(node, at);
        }
        let fields = self.fields(node, at, &KEYS)?;
        let endpoint = match self.one_of((&fields, node), at, &["address", "addresses"], true)? {
            ("address", node) => self.address_or_host(node, &at.key("address")),
            (key, node) => {
                let at = at.key(key);
                let items = self.items(node, &at).iter().enumerate();
                let addresses = items.filter_map(|(i, node)| self.address(node, &at.index(i)));
                Some(Endpoint::at_any(addresses.collect::<Vec<_>>()))
            }
        };
        // If it is missing, an error is reported; the other fields are checked as well.
        let mut endpoint = endpoint.unwrap_or_else(|| Endpoint::at_any([]));
        endpoint.name = self.field(&fields, at, "name", MeshReader::text);
        endpoint.weight =
            self.field(&fields, at, "weight", |reader, node, at| reader.integer(node, at, WEIGHT));
        if let Some(locality) = self.field(&fields, at, "locality", MeshReader::locality) {
            endpoint.locality = locality;
        }
        endpoint.priority =
            self.field(&fields, at, "priority", |reader, node, at| reader.integer(node, at, PRIORITY));
        if let Some(health) = self
            .field(&fields, at, "health", |reader, node, at| reader.keyword(node, at, &EndpointHealth::ALL))
        {
            endpoint.health = health;
        }
        endpoint.hash_key = self.field(&fields, at, "hash_key", MeshReader::text);
        Some(endpoint)
    }

    /// Reads an IP address or a host name, with a port.
    fn address_or_host(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<Endpoint> {
        let endpoint = match &node.value {
            YamlValue::String(text) => match text.parse::<SocketAddr>() {
                Ok(address) => Some(Endpoint::at(address)).filter(|_| address.port() > 0),
                Err(_) => host_and_port(text).map(|(host, port)| Endpoint::at_host(host, port)),
            },
            _ => None,
        };
        if endpoint.is_none() {
            self.push_expected("IP:PORT or HOST:PORT", node, at);
        }
        endpoint
    }

    fn address(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<SocketAddr> {
        let address = match &node.value {
            YamlValue::String(text) => text.parse::<SocketAddr>().ok().filter(|address| address.port() > 0),
            _ => None,
        };
        if address.is_none() {
            self.push_expected("IP:PORT (only address can be a host name)", node, at);
        }
        address
    }

    fn locality(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<Locality> {
        let text = self.text(node, at)?;
        let locality = Locality::parse(&text);
        if locality.is_none() {
            self.push_error(node.position, at, LOCALITY);
        }
        locality
    }

    fn locality_settings(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<LocalitySettings> {
        let fields = self.fields(node, at, &["weight", "priority"])?;
        Some(LocalitySettings {
            weight: self.field(&fields, at, "weight", |reader, node, at| reader.integer(node, at, WEIGHT)),
            priority: self
                .field(&fields, at, "priority", |reader, node, at| reader.integer(node, at, PRIORITY)),
        })
    }

    fn outlier_detection(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<OutlierDetection> {
        const KEYS: [&str; 6] = [
            "interval",
            "base_ejection_time",
            "max_ejection_time",
            "max_ejection_percent",
            "success_rate",
            "failure_percentage",
        ];
        let fields = self.fields(node, at, &KEYS)?;
        Some(OutlierDetection {
            interval: self.field(&fields, at, "interval", MeshReader::duration),
            base_ejection_time: self.field(&fields, at, "base_ejection_time", MeshReader::duration),
            max_ejection_time: self.field(&fields, at, "max_ejection_time", MeshReader::duration),
            max_ejection_percent: self.field(&fields, at, "max_ejection_percent", MeshReader::percent),
            success_rate: self.field(&fields, at, "success_rate", MeshReader::success_rate),
            failure_percentage: self.field(&fields, at, "failure_percentage", MeshReader::failure_percentage),
        })
    }

    fn success_rate(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<SuccessRate> {
        let fields =
            self.fields(node, at, &["stdev_factor", "enforcing", "minimum_hosts", "request_volume"])?;
        Some(SuccessRate {
            stdev_factor: self.field(&fields, at, "stdev_factor", MeshReader::stdev_factor),
            enforcing_percent: self.field(&fields, at, "enforcing", MeshReader::percent),
            minimum_hosts: self.field(&fields, at, "minimum_hosts", MeshReader::count),
            request_volume: self.field(&fields, at, "request_volume", MeshReader::count),
        })
    }

    fn failure_percentage(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<FailurePercentage> {
        let fields = self.fields(node, at, &["threshold", "enforcing", "minimum_hosts", "request_volume"])?;
        Some(FailurePercentage {
            threshold_percent: self.field(&fields, at, "threshold", MeshReader::percent),
            enforcing_percent: self.field(&fields, at, "enforcing", MeshReader::percent),
            minimum_hosts: self.field(&fields, at, "minimum_hosts", MeshReader::count),
            request_volume: self.field(&fields, at, "request_volume", MeshReader::count),
        })
    }

    /// Reads a number such as 1.9; the message contains thousandths.
    fn stdev_factor(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<u32> {
        let factor = match node.value {
            YamlValue::Integer(number) => Some(number as f64),
            YamlValue::Float(number) => Some(number),
            _ => None,
        };
        let factor = factor.filter(|factor| (0.0..=1000.0).contains(factor));
        if factor.is_none() {
            self.push_expected("a number such as 1.9", node, at);
        }
        factor.map(|factor| (factor * 1000.0).round() as u32)
    }

    fn count(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<u32> {
        self.integer(node, at, "0 to 4294967295")
    }
}

const PRIORITY: &str = "0 (the highest) or a number after it";
const LOCALITY: &str = "expected zone, region/zone or region/zone/sub_zone";

/// Splits `HOST:PORT`. The host is a DNS name, so an invalid IP address is not one: no top-level domain is a number.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let labels: Vec<_> = host.strip_suffix('.').unwrap_or(host).split('.').collect();
    let is_label = |label: &&str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_number = labels.last().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    (host.len() <= 254 && labels.iter().all(is_label) && !is_number).then_some((host, port))
}
