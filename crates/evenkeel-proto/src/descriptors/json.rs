//! Messages as JSON, in protobuf's JSON mapping.
//!
//! The mapping fails for the whole message if one `Any` has an unknown type. Here such an `Any` keeps its type URL
//! and its bytes in base64.

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MapKey, ReflectMessage, Value};
use prost_types::Any;
use serde_json::{Map, Value as Json, json};

/// Maximum nesting depth of `Any` messages.
const MAX_DEPTH: usize = 32;

/// Returns the JSON of a message; null if the pool does not know its type.
pub fn message_json<M: Message + Name>(message: &M, pool: &DescriptorPool) -> Json {
    let descriptor = pool.get_message_by_name(&M::full_name());
    let message =
        descriptor.and_then(|descriptor| DynamicMessage::decode(descriptor, &*message.encode_to_vec()).ok());
    message.map_or(Json::Null, |message| message_of(&message, pool, 0))
}

fn message_of(message: &DynamicMessage, pool: &DescriptorPool, depth: usize) -> Json {
    let descriptor = message.descriptor();
    let name = descriptor.full_name();
    if name == "google.protobuf.Any" {
        return any_of(message, pool, depth);
    }
    if name.starts_with("google.protobuf.") {
        // An out-of-range Timestamp becomes a text, instead of an error for the whole message.
        return serde_json::to_value(message).unwrap_or_else(|error| json!(format!("not valid: {error}")));
    }
    Json::Object(fields_of(message, pool, depth))
}

fn fields_of(message: &DynamicMessage, pool: &DescriptorPool, depth: usize) -> Map<String, Json> {
    let fields = message.fields();
    fields
        .map(|(field, value)| (field.json_name().to_owned(), value_of(value, &field.kind(), pool, depth)))
        .collect()
}

fn any_of(message: &DynamicMessage, pool: &DescriptorPool, depth: usize) -> Json {
    let Ok(any) = message.transcode_to::<Any>() else { return Json::Null };
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    let known = pool.get_message_by_name(name).filter(|_| depth < MAX_DEPTH);
    let mut object = Map::new();
    object.insert("@type".to_owned(), json!(any.type_url));
    match known.and_then(|message| DynamicMessage::decode(message, &*any.value).ok()) {
        None => {
            object.insert("value".to_owned(), bytes_of(&any.value, pool));
        }
        Some(message) => match message_of(&message, pool, depth + 1) {
            Json::Object(fields) if !name.starts_with("google.protobuf.") => object.extend(fields),
            value => {
                object.insert("value".to_owned(), value);
            }
        },
    }
    Json::Object(object)
}

fn value_of(value: &Value, kind: &Kind, pool: &DescriptorPool, depth: usize) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::I32(value) => json!(value),
        Value::U32(value) => json!(value),
        // The JSON mapping uses strings for 64-bit integers: JavaScript numbers cannot represent them.
        Value::I64(value) => json!(value.to_string()),
        Value::U64(value) => json!(value.to_string()),
        Value::F32(value) => number_of(f64::from(*value)),
        Value::F64(value) => number_of(*value),
        Value::String(value) => json!(value),
        Value::Bytes(value) => bytes_of(value, pool),
        Value::EnumNumber(number) => {
            let named = kind.as_enum().and_then(|kind| kind.get_value(*number));
            named.map_or_else(|| json!(number), |value| json!(value.name()))
        }
        Value::Message(message) => message_of(message, pool, depth),
        Value::List(list) => list.iter().map(|value| value_of(value, kind, pool, depth)).collect(),
        Value::Map(map) => {
            let of_values = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
            let of_values = of_values.unwrap_or(Kind::String);
            let entries = map.iter();
            entries.map(|(key, value)| (key_of(key), value_of(value, &of_values, pool, depth))).collect()
        }
    }
}

fn key_of(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// Formats a number. NaN and the infinities are strings in protobuf's JSON mapping.
fn number_of(number: f64) -> Json {
    if number.is_finite() {
        json!(number)
    } else if number.is_nan() {
        json!("NaN")
    } else {
        json!(if number > 0.0 { "Infinity" } else { "-Infinity" })
    }
}

/// Encodes bytes in base64, as protobuf's JSON mapping does.
fn bytes_of(bytes: &[u8], pool: &DescriptorPool) -> Json {
    let wrapped = pool.get_message_by_name("google.protobuf.BytesValue").map(|wrapper| {
        let mut wrapper = DynamicMessage::new(wrapper);
        wrapper.set_field_by_name("value", Value::Bytes(bytes.to_vec().into()));
        serde_json::to_value(wrapper).unwrap_or_default()
    });
    wrapped.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::envoy::config::listener::v3::{ApiListener, Listener};
    use crate::envoy::service::status::v3::client_config::GenericXdsConfig;
    use crate::envoy::service::status::v3::{ClientConfig, ClientStatusResponse};
    use prost_types::Timestamp;

    use super::*;

    /// An unknown type inside a known one keeps its bytes, and an invalid Timestamp affects only its own
    /// field.
    #[test]
    fn what_is_unknown_does_not_hide_the_rest() {
        let unknown = Any { type_url: "acme.com/acme.v1.Thing".to_owned(), value: vec![1, 2, 3] };
        let listener = Listener {
            name: "orders".to_owned(),
            api_listener: Some(ApiListener { api_listener: Some(unknown) }),
            ..Listener::default()
        };
        let resource = GenericXdsConfig {
            xds_config: Some(Any { type_url: Listener::type_url(), value: listener.encode_to_vec() }),
            last_updated: Some(Timestamp { seconds: i64::MAX, nanos: 0 }),
            client_status: 4,
            ..GenericXdsConfig::default()
        };
        let client = ClientConfig { generic_xds_configs: vec![resource], ..ClientConfig::default() };
        let response = ClientStatusResponse { config: vec![client] };
        let json = message_json(&response, &crate::descriptors::pool());
        let resource = &json["config"][0]["genericXdsConfigs"][0];
        assert_eq!(resource["clientStatus"], "NACKED");
        assert_eq!(resource["xdsConfig"]["name"], "orders");
        let inner = &resource["xdsConfig"]["apiListener"]["apiListener"];
        assert_eq!(inner, &json!({ "@type": "acme.com/acme.v1.Thing", "value": "AQID" }));
        assert!(
            resource["lastUpdated"].as_str().is_some_and(|text| text.starts_with("not valid")),
            "{resource}"
        );
    }
}
