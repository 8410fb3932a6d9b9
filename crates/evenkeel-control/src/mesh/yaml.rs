//! YAML as a tree in which every key and value has its position.
//!
//! The work is bounded for any input: in size, in depth, and in the expansion of aliases. Duplicate keys are rejected
//! here, so that later stages need not choose between them.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Spanned};

use super::errors::{MeshError, MeshErrors, MeshPath, SourcePosition};

/// Maximum size of a mesh: far above 10,000 endpoints with all their keys.
pub(crate) const MAX_BYTES: usize = 32 << 20;
const MAX_NODES: usize = 1_000_000;
/// Maximum number of events replayed by aliases, far below `MAX_NODES`: they save a few lines, and must not multiply
/// the input.
const MAX_REPLAYED: usize = 100_000;
/// Maximum depth. A mesh has ten levels; the settings of custom policies come on top.
const MAX_DEPTH: usize = 48;

#[derive(Clone, Debug)]
pub(crate) struct YamlNode {
    /// `None` within a merged mapping.
    pub(crate) position: Option<SourcePosition>,
    pub(crate) value: YamlValue,
}

#[derive(Clone, Debug)]
pub(crate) enum YamlValue {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    Sequence(Vec<YamlNode>),
    Mapping(Vec<(YamlKey, YamlNode)>),
}

#[derive(Clone, Debug)]
pub(crate) struct YamlKey {
    pub(crate) position: Option<SourcePosition>,
    pub(crate) text: String,
}

/// Parses one YAML document.
pub(crate) fn parse(text: &str) -> Result<YamlNode, MeshErrors> {
    if text.len() > MAX_BYTES {
        let found = text.len();
        return Err(MeshErrors::of_file(format!("expected at most {MAX_BYTES} bytes, found {found}")));
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
        let position = error.location().and_then(position);
        MeshErrors::new(vec![MeshError::new(position, String::new(), parser_message(&error))])
    })
}

/// Returns the parser's message, without the position that it appends.
fn parser_message(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {} occurs twice", super::errors::quoted(key))
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "expected one document, found several".to_owned()
        }
        Error::Budget { .. } => "is too large or nested too deep for a mesh".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias of an enclosing node".to_owned(),
        other => {
            let text = other.to_string();
            let text = text.lines().next().unwrap_or_default();
            text.split(" at line ").next().unwrap_or_default().to_owned()
        }
    }
}

fn position(location: Location) -> Option<SourcePosition> {
    Some(SourcePosition { line: location.line(), column: location.column() })
        .filter(|position| position.line > 0)
}

impl YamlNode {
    /// Returns the position of the value at this path, or of the closest enclosing one.
    pub(crate) fn position_of(&self, at: &MeshPath<'_>) -> Option<SourcePosition> {
        self.closest_node(at).1
    }

    /// Returns true if there is a value at this path.
    pub(crate) fn has(&self, at: &MeshPath<'_>) -> bool {
        self.closest_node(at).0.is_some()
    }

    fn closest_node(&self, at: &MeshPath<'_>) -> (Option<&YamlNode>, Option<SourcePosition>) {
        let (parent, found): (_, Option<&YamlNode>) = match *at {
            MeshPath::Root => return (Some(self), self.position),
            MeshPath::Key(parent, key) => {
                let (node, position) = self.closest_node(parent);
                (position, node.and_then(|node| node.get(key)))
            }
            MeshPath::Index(parent, index) => {
                let (node, position) = self.closest_node(parent);
                (position, node.and_then(|node| node.item(index)))
            }
        };
        (found, found.and_then(|node| node.position).or(parent))
    }

    fn get(&self, key: &str) -> Option<&YamlNode> {
        let YamlValue::Mapping(entries) = &self.value else { return None };
        entries.iter().find(|(known, _)| known.text == key).map(|(_, node)| node)
    }

    fn item(&self, index: usize) -> Option<&YamlNode> {
        let YamlValue::Sequence(items) = &self.value else { return None };
        items.get(index)
    }

    /// Returns the value as error messages describe it.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            YamlValue::Null => "nothing".to_owned(),
            YamlValue::Bool(value) => value.to_string(),
            YamlValue::Integer(value) => value.to_string(),
            YamlValue::Float(value) => value.to_string(),
            YamlValue::String(text) => super::errors::quoted(text),
            YamlValue::Sequence(_) => "a list".to_owned(),
            YamlValue::Mapping(_) => "a mapping".to_owned(),
        }
    }

    /// Converts the value to JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            YamlValue::Null => Json::Null,
            YamlValue::Bool(value) => Json::Bool(*value),
            YamlValue::Integer(value) => i64::try_from(*value)
                .map(Json::from)
                .or_else(|_| u64::try_from(*value).map(Json::from))
                .unwrap_or_else(|_| Json::from(*value as f64)),
            YamlValue::Float(value) => Json::from(*value),
            YamlValue::String(text) => Json::String(text.clone()),
            YamlValue::Sequence(items) => Json::Array(items.iter().map(YamlNode::to_json).collect()),
            YamlValue::Mapping(entries) => {
                Json::Object(entries.iter().map(|(key, node)| (key.text.clone(), node.to_json())).collect())
            }
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlNode, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        Ok(YamlNode {
            position: position(spanned.referenced).or_else(|| position(spanned.defined)),
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for YamlKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlKey, D::Error> {
        let spanned = Spanned::<String>::deserialize(deserializer)?;
        Ok(YamlKey {
            position: position(spanned.referenced).or_else(|| position(spanned.defined)),
            text: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlValue, D::Error> {
        deserializer.deserialize_any(YamlValueVisitor)
    }
}

struct YamlValueVisitor;

impl<'de> Visitor<'de> for YamlValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
        YamlValue::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<YamlValue, E> {
        Ok(YamlValue::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlValue::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(YamlValue::Mapping(map))
    }
}
