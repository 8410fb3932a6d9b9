//! YAML as a tree in which every key and value knows its place.
//!
//! Whatever comes, reading it is bounded: in size, in depth, and in what aliases make of it. Keys that stand twice are
//! refused here, so that nobody downstream asks which one counts.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Spanned};

use super::errors::{At, MeshError, MeshErrors, Place};

/// The most that a mesh may have: far above 10,000 endpoints with all their keys.
pub(crate) const MAX_BYTES: usize = 32 << 20;
const MAX_NODES: usize = 1_000_000;
/// Aliases save a few lines; what they multiply is bounded well below the rest.
const MAX_REPLAYED: usize = 100_000;
/// Meshes are ten deep; what custom policies nest in their settings comes on top.
const MAX_DEPTH: usize = 48;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// None in what stands in a merged mapping.
    pub(crate) place: Option<Place>,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Whole(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) place: Option<Place>,
    pub(crate) text: String,
}

/// Reads one document.
pub(crate) fn parse(text: &str) -> Result<Node, MeshErrors> {
    if text.len() > MAX_BYTES {
        let found = text.len();
        return Err(MeshErrors::whole(format!("expected at most {MAX_BYTES} bytes, found {found}")));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Merge,
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().and_then(place);
        MeshErrors::new(vec![MeshError::new(place, String::new(), words(&error))])
    })
}

/// What the parser says, without the place that it adds.
fn words(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {} stands here twice", super::errors::quoted(key))
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "expected one document, found several".to_owned()
        }
        Error::Budget { .. } => "has more, or deeper, than any mesh".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias of what it stands in".to_owned(),
        other => {
            let text = other.to_string();
            let text = text.lines().next().unwrap_or_default();
            text.split(" at line ").next().unwrap_or_default().to_owned()
        }
    }
}

fn place(location: Location) -> Option<Place> {
    Some(Place { line: location.line(), column: location.column() }).filter(|place| place.line > 0)
}

impl Node {
    /// The place of what `at` names, or of the nearest thing around it.
    pub(crate) fn place_of(&self, at: &At<'_>) -> Option<Place> {
        self.nearest(at).1
    }

    fn nearest(&self, at: &At<'_>) -> (Option<&Node>, Option<Place>) {
        let (parent, found): (_, Option<&Node>) = match *at {
            At::Root => return (Some(self), self.place),
            At::Key(parent, key) => {
                let (node, place) = self.nearest(parent);
                (place, node.and_then(|node| node.get(key)))
            }
            At::Index(parent, index) => {
                let (node, place) = self.nearest(parent);
                (place, node.and_then(|node| node.item(index)))
            }
        };
        (found, found.and_then(|node| node.place).or(parent))
    }

    fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(known, _)| known.text == key).map(|(_, node)| node)
    }

    fn item(&self, index: usize) -> Option<&Node> {
        let Value::List(items) = &self.value else { return None };
        items.get(index)
    }

    /// The value as messages call it.
    pub(crate) fn found(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Whole(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(text) => super::errors::quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    /// As JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Whole(value) => i64::try_from(*value)
                .map(Json::from)
                .or_else(|_| u64::try_from(*value).map(Json::from))
                .unwrap_or_else(|_| Json::from(*value as f64)),
            Value::Float(value) => Json::from(*value),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => Json::Array(items.iter().map(Node::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, node)| (key.text.clone(), node.to_json())).collect())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Node { place: place(spanned.referenced).or_else(|| place(spanned.defined)), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(Key { place: place(spanned.referenced).or_else(|| place(spanned.defined)), text: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Whole(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Value::Map(map))
    }
}
