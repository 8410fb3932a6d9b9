//! Reads services and their routes from a YAML tree.

use super::{MappingFields, MeshReader};
use crate::mesh::errors::MeshPath;
use crate::mesh::service::{
    HeaderCondition, HeaderMatch, PathMatch, RetryOn, Route, RouteHash, RouteHashSource, RouteRetry, Service,
};
use crate::mesh::yaml::{YamlNode, YamlValue};

impl MeshReader {
    /// Reads a service: a list of routes, or the settings of one route for every call.
    pub(super) fn service(&mut self, name: &str, node: &YamlNode, at: &MeshPath<'_>) -> Option<Service> {
        if matches!(node.value, YamlValue::Null) {
            return Some(Service::to(name));
        }
        let fields = self.fields(node, at, &["routes", "cluster", "weights", "timeout", "retry", "hash"])?;
        let position = (&fields, node);
        match self.one_of(position, at, &["routes", "cluster", "weights"], false) {
            Some(("routes", routes)) => {
                for key in ["timeout", "retry", "hash"] {
                    if let Some(node) = fields.get(key) {
                        let text = format!("expected in each of the routes, found {key} beside them");
                        self.push_error(node.position, &at.key(key), text);
                    }
                }
                let at = at.key("routes");
                let items = self.items(routes, &at).iter().enumerate();
                let routes = items.filter_map(|(i, node)| self.route(node, &at.index(i))).collect();
                Some(Service { routes, is_plain: false })
            }
            Some(("weights", node)) => {
                let route =
                    Route { is_split: true, to: self.weights(node, &at.key("weights")), ..Route::default() };
                Some(self.plain(route, &fields, at))
            }
            Some((key, node)) => {
                let cluster = self.text(node, &at.key(key))?;
                Some(self.plain(Route::to(&cluster), &fields, at))
            }
            None => Some(self.plain(Route::to(name), &fields, at)),
        }
    }

    fn plain(&mut self, mut route: Route, fields: &MappingFields<'_>, at: &MeshPath<'_>) -> Service {
        self.settings(&mut route, fields, at);
        Service { routes: vec![route], is_plain: true }
    }

    fn route(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<Route> {
        const KEYS: [&str; 11] = [
            "path",
            "prefix",
            "regex",
            "ignore_case",
            "headers",
            "fraction",
            "to",
            "weights",
            "timeout",
            "retry",
            "hash",
        ];
        let fields = self.fields(node, at, &KEYS)?;
        let position = (&fields, node);
        let mut route = Route::default();
        if let Some((key, node)) = self.one_of(position, at, &["path", "prefix", "regex"], false) {
            let kind = match key {
                "path" => PathMatch::Exact,
                "prefix" => PathMatch::Prefix,
                _ => PathMatch::Regex,
            };
            route.path = self.text(node, &at.key(key)).map(kind);
        }
        route.ignore_case = self.flag(&fields, at, "ignore_case");
        if let Some(node) = fields.get("headers") {
            let at = at.key("headers");
            for (key, node) in self.entries(node, &at) {
                let header = self.header(node, &at.key(&key.text));
                route.headers.extend(header.map(|header| (key.text.clone(), header)));
            }
        }
        route.fraction = self.field(&fields, at, "fraction", MeshReader::share);
        match self.one_of(position, at, &["to", "weights"], true) {
            Some(("to", node)) => route.to.extend(self.text(node, &at.key("to")).map(|name| (name, 1))),
            Some((key, node)) => {
                route.is_split = true;
                route.to = self.weights(node, &at.key(key));
            }
            None => {}
        }
        self.settings(&mut route, &fields, at);
        Some(route)
    }

    /// Reads the settings of a route beside its conditions and clusters.
    fn settings(&mut self, route: &mut Route, fields: &MappingFields<'_>, at: &MeshPath<'_>) {
        route.timeout = self.field(fields, at, "timeout", MeshReader::duration);
        route.retry = self.field(fields, at, "retry", MeshReader::retry);
        if let Some(node) = fields.get("hash") {
            let at = at.key("hash");
            let items = self.items(node, &at).iter().enumerate();
            route.hash = items.filter_map(|(i, node)| self.hash(node, &at.index(i))).collect();
        }
    }

    fn weights(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Vec<(String, u32)> {
        let entries = self.entries(node, at).iter();
        let weight = |(key, node): &(_, YamlNode)| {
            let key: &crate::mesh::yaml::YamlKey = key;
            let weight = self.integer(node, &at.key(&key.text), "0 to 4294967295")?;
            Some((key.text.clone(), weight))
        };
        entries.filter_map(weight).collect()
    }

    /// Reads a header condition. A text is the exact value; a mapping contains one condition.
    fn header(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<HeaderMatch> {
        const TESTS: [&str; 7] = ["exact", "prefix", "suffix", "contains", "regex", "range", "present"];
        if !matches!(node.value, YamlValue::Mapping(_)) {
            return self.text(node, at).map(|text| HeaderMatch::of(HeaderCondition::Exact(text)));
        }
        let keys: Vec<_> = TESTS.into_iter().chain(["invert", "ignore_case"]).collect();
        let fields = self.fields(node, at, &keys)?;
        let (key, value) = self.one_of((&fields, node), at, &TESTS, true)?;
        let (invert, ignore_case) = (self.flag(&fields, at, "invert"), self.flag(&fields, at, "ignore_case"));
        let value_at = at.key(key);
        let test = match key {
            "range" => self.range(value, &value_at)?,
            "present" => HeaderCondition::Present(self.boolean(value, &value_at)?),
            _ => {
                let text = self.text(value, &value_at)?;
                match key {
                    "exact" => HeaderCondition::Exact(text),
                    "prefix" => HeaderCondition::Prefix(text),
                    "suffix" => HeaderCondition::Suffix(text),
                    "contains" => HeaderCondition::Contains(text),
                    _ => HeaderCondition::Regex(text),
                }
            }
        };
        if ignore_case && matches!(key, "regex" | "range" | "present") {
            self.push_error(
                node.position,
                &at.key("ignore_case"),
                format!("expected no ignore_case beside {key}"),
            );
        }
        Some(HeaderMatch { test, ignore_case, invert })
    }

    fn range(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<HeaderCondition> {
        let fields = self.fields(node, at, &["from", "below"])?;
        let number = |reader: &mut MeshReader, node: &YamlNode, at: &MeshPath<'_>| {
            reader.integer(node, at, "a whole number")
        };
        let from = self.field(&fields, at, "from", number);
        let below = self.field(&fields, at, "below", number);
        if fields.get("from").is_none() || fields.get("below").is_none() {
            self.push_error(node.position, at, "expected both from and below");
        }
        Some(HeaderCondition::Range { from: from?, below: below? })
    }

    fn retry(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<RouteRetry> {
        let fields = self.fields(node, at, &["on", "attempts", "backoff"])?;
        let mut retry = RouteRetry::on([]);
        let statuses = RetryOn::ALL.map(|status| (status.name(), status));
        if let Some(node) = fields.get("on") {
            let at = at.key("on");
            let items = self.items(node, &at).iter().enumerate();
            retry.on = items.filter_map(|(i, node)| self.keyword(node, &at.index(i), &statuses)).collect();
        } else {
            let words = RetryOn::ALL.map(RetryOn::name).join(", ");
            self.push_error(node.position, at, format!("expected on: a list of {words}"));
        }
        retry.attempts =
            self.field(&fields, at, "attempts", |reader, node, at| reader.integer(node, at, "2 to 5"));
        if let Some(node) = fields.get("backoff") {
            let at = at.key("backoff");
            let fields = self.fields(node, &at, &["base", "max"])?;
            let base = self.field(&fields, &at, "base", MeshReader::duration);
            let max = self.field(&fields, &at, "max", MeshReader::duration);
            if fields.get("base").is_none() {
                self.push_error(node.position, &at, "expected base: a duration such as 25ms");
            }
            retry.backoff = base.map(|base| (base, max));
        }
        Some(retry)
    }

    fn hash(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<RouteHash> {
        if matches!(&node.value, YamlValue::String(text) if text == "channel_id") {
            return Some(RouteHash::channel_id());
        }
        if !matches!(node.value, YamlValue::Mapping(_)) {
            self.push_expected("channel_id, or a mapping with header or channel_id", node, at);
            return None;
        }
        let fields = self.fields(node, at, &["header", "rewrite", "channel_id", "terminal"])?;
        let terminal = self.flag(&fields, at, "terminal");
        let by = match self.one_of((&fields, node), at, &["header", "channel_id"], true)? {
            ("header", node) => {
                let rewrite = self.field(&fields, at, "rewrite", MeshReader::rewrite);
                RouteHashSource::Header { name: self.text(node, &at.key("header"))?, rewrite }
            }
            (key, node) => {
                if !matches!(node.value, YamlValue::Bool(true)) {
                    self.push_expected("true", node, &at.key(key));
                }
                if let Some(node) = fields.get("rewrite") {
                    self.push_error(node.position, &at.key("rewrite"), "expected only beside header");
                }
                RouteHashSource::ChannelId
            }
        };
        Some(RouteHash { by, terminal })
    }

    fn rewrite(&mut self, node: &YamlNode, at: &MeshPath<'_>) -> Option<(String, String)> {
        let fields = self.fields(node, at, &["regex", "with"])?;
        let regex = self.field(&fields, at, "regex", MeshReader::text);
        let with = self.field(&fields, at, "with", |reader, node, at| match &node.value {
            // An empty replacement deletes the match.
            YamlValue::String(text) => Some(text.clone()),
            _ => reader.text(node, at),
        });
        if fields.get("regex").is_none() || fields.get("with").is_none() {
            self.push_error(node.position, at, "expected both regex and with");
        }
        Some((regex?, with?))
    }
}
