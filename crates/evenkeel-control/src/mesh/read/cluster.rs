//! Reading clusters and their endpoints.

use std::net::SocketAddr;

use super::Reader;
use crate::mesh::Policy;
use crate::mesh::cluster::{
    Cluster, Endpoint, FailurePercentage, Health, Locality, LocalitySettings, Members, OutlierDetection,
    SuccessRate,
};
use crate::mesh::errors::At;
use crate::mesh::yaml::{Node, Value};

const WEIGHT: &str = "1 to 4294967295";

impl Reader {
    pub(super) fn cluster(&mut self, _: &str, node: &Node, at: &At<'_>) -> Option<Cluster> {
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
                Some(Members::Endpoints(endpoints.collect()))
            }
            Some(("dns", node)) => self.dns(node, &at.key("dns")),
            Some((key, node)) => {
                let at = at.key(key);
                let items = self.items(node, &at).iter().enumerate();
                let names = items.filter_map(|(i, node)| self.text(node, &at.index(i)));
                Some(Members::Clusters(names.collect()))
            }
            None => None,
        };
        let mut cluster = Cluster::of(members.unwrap_or(Members::Endpoints(Vec::new())));
        // Its settings are read where all policies are, in `check`.
        cluster.policy = fields.get("policy").map(|node| Policy::from_json(node.to_json()));
        if let Some(node) = fields.get("localities") {
            let at = at.key("localities");
            for (key, node) in self.entries(node, &at) {
                let at = at.key(&key.text);
                let settings = self.locality_settings(node, &at);
                match Locality::parse(&key.text) {
                    Some(locality) => {
                        cluster.localities.extend(settings.map(|settings| (locality, settings)));
                    }
                    None => self.problem(key.place, &at, LOCALITY),
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
                reader.problem(node.place, at, "expected max_requests");
            }
            reader.field(&fields, at, "max_requests", |reader, node, at| {
                reader.whole(node, at, "0 to 4294967295")
            })
        });
        cluster.outlier_detection = self.field(&fields, at, "outlier_detection", Reader::outlier_detection);
        cluster.lrs = self.is_yes(&fields, at, "lrs");
        Some(cluster)
    }

    /// A host name with its port.
    fn dns(&mut self, node: &Node, at: &At<'_>) -> Option<Members> {
        let text = self.text(node, at)?;
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let is_host = |host: &str| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"[]:/@".contains(c))
        };
        match parts {
            Some((host, port)) if port > 0 && is_host(host) => {
                Some(Members::Dns { host: host.to_owned(), port })
            }
            _ => {
                self.expected("HOST:PORT", node, at);
                None
            }
        }
    }

    /// An address, or a mapping with more.
    fn endpoint(&mut self, node: &Node, at: &At<'_>) -> Option<Endpoint> {
        const KEYS: [&str; 8] =
            ["address", "addresses", "name", "weight", "locality", "priority", "health", "hash_key"];
        if !matches!(node.value, Value::Map(_)) {
            return self.address(node, at).map(Endpoint::at);
        }
        let fields = self.fields(node, at, &KEYS)?;
        let addresses = match self.one_of((&fields, node), at, &["address", "addresses"], true)? {
            ("address", node) => self.address(node, &at.key("address")).into_iter().collect(),
            (key, node) => {
                let at = at.key(key);
                let items = self.items(node, &at).iter().enumerate();
                items.filter_map(|(i, node)| self.address(node, &at.index(i))).collect::<Vec<_>>()
            }
        };
        let mut endpoint = Endpoint::at_any(addresses);
        endpoint.name = self.field(&fields, at, "name", Reader::text);
        endpoint.weight =
            self.field(&fields, at, "weight", |reader, node, at| reader.whole(node, at, WEIGHT));
        if let Some(locality) = self.field(&fields, at, "locality", Reader::locality) {
            endpoint.locality = locality;
        }
        endpoint.priority =
            self.field(&fields, at, "priority", |reader, node, at| reader.whole(node, at, PRIORITY));
        if let Some(health) =
            self.field(&fields, at, "health", |reader, node, at| reader.word(node, at, &Health::ALL))
        {
            endpoint.health = health;
        }
        endpoint.hash_key = self.field(&fields, at, "hash_key", Reader::text);
        Some(endpoint)
    }

    fn address(&mut self, node: &Node, at: &At<'_>) -> Option<SocketAddr> {
        let address = match &node.value {
            Value::Text(text) => text.parse::<SocketAddr>().ok().filter(|address| address.port() > 0),
            _ => None,
        };
        if address.is_none() {
            self.expected("IP:PORT (a host name can be the cluster's dns)", node, at);
        }
        address
    }

    fn locality(&mut self, node: &Node, at: &At<'_>) -> Option<Locality> {
        let text = self.text(node, at)?;
        let locality = Locality::parse(&text);
        if locality.is_none() {
            self.problem(node.place, at, LOCALITY);
        }
        locality
    }

    fn locality_settings(&mut self, node: &Node, at: &At<'_>) -> Option<LocalitySettings> {
        let fields = self.fields(node, at, &["weight", "priority"])?;
        Some(LocalitySettings {
            weight: self.field(&fields, at, "weight", |reader, node, at| reader.whole(node, at, WEIGHT)),
            priority: self
                .field(&fields, at, "priority", |reader, node, at| reader.whole(node, at, PRIORITY)),
        })
    }

    fn outlier_detection(&mut self, node: &Node, at: &At<'_>) -> Option<OutlierDetection> {
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
            interval: self.field(&fields, at, "interval", Reader::duration),
            base_ejection_time: self.field(&fields, at, "base_ejection_time", Reader::duration),
            max_ejection_time: self.field(&fields, at, "max_ejection_time", Reader::duration),
            max_ejection_percent: self.field(&fields, at, "max_ejection_percent", Reader::percent),
            success_rate: self.field(&fields, at, "success_rate", Reader::success_rate),
            failure_percentage: self.field(&fields, at, "failure_percentage", Reader::failure_percentage),
        })
    }

    fn success_rate(&mut self, node: &Node, at: &At<'_>) -> Option<SuccessRate> {
        let fields =
            self.fields(node, at, &["stdev_factor", "enforcing", "minimum_hosts", "request_volume"])?;
        Some(SuccessRate {
            stdev_factor: self.field(&fields, at, "stdev_factor", Reader::stdev_factor),
            enforcing_percent: self.field(&fields, at, "enforcing", Reader::percent),
            minimum_hosts: self.field(&fields, at, "minimum_hosts", Reader::count),
            request_volume: self.field(&fields, at, "request_volume", Reader::count),
        })
    }

    fn failure_percentage(&mut self, node: &Node, at: &At<'_>) -> Option<FailurePercentage> {
        let fields = self.fields(node, at, &["threshold", "enforcing", "minimum_hosts", "request_volume"])?;
        Some(FailurePercentage {
            threshold_percent: self.field(&fields, at, "threshold", Reader::percent),
            enforcing_percent: self.field(&fields, at, "enforcing", Reader::percent),
            minimum_hosts: self.field(&fields, at, "minimum_hosts", Reader::count),
            request_volume: self.field(&fields, at, "request_volume", Reader::count),
        })
    }

    /// Written as a number such as 1.9; the message has thousandths.
    fn stdev_factor(&mut self, node: &Node, at: &At<'_>) -> Option<u32> {
        let factor = match node.value {
            Value::Whole(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        };
        let factor = factor.filter(|factor| (0.0..=1000.0).contains(factor));
        if factor.is_none() {
            self.expected("a number such as 1.9", node, at);
        }
        factor.map(|factor| (factor * 1000.0).round() as u32)
    }

    fn count(&mut self, node: &Node, at: &At<'_>) -> Option<u32> {
        self.whole(node, at, "0 to 4294967295")
    }
}

const PRIORITY: &str = "0 (the highest) or a number after it";
const LOCALITY: &str = "expected zone, region/zone or region/zone/sub_zone";
