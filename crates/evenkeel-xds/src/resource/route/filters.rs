//! Parsing of HTTP filters and their overrides (A39).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_proto::envoy::config::route::v3::FilterConfig;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::FaultDelay;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use evenkeel_proto::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_filter::ConfigType;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use evenkeel_proto::{udpa, xds};

use crate::FieldPath;
use crate::resource::message_name;
use crate::resource::reader::ResourceReader;
use crate::routing::{
    AbortSpec, DelaySpec, FaultConfig, FaultFraction, FilterInstance, FilterOverride, FilterOverrides,
    XdsHttpFilter, code_from_grpc, code_from_http,
};
use crate::text::quoted;

/// Returns the filter chain of a listener.
pub(in crate::resource) fn chain(
    messages: &[HttpFilter],
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Vec<FilterInstance> {
    if messages.is_empty() {
        reader.problem(path, "expected at least one filter, found none");
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    let mut chain: Vec<(usize, FilterInstance)> = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let path = path.index(i);
        reader.name(&message.name, &path.field("name"));
        if !names.insert(message.name.as_str()) {
            reader.problem(&path.field("name"), format!("{} occurs twice", quoted(&message.name)));
        }
        if let Some(filter) = filter(message, &path, reader) {
            let name = message.name.as_str().into();
            // The index of the message is stored, since optional filters of unknown types are left out.
            chain.push((i, FilterInstance { name, filter, disabled: message.disabled }));
        }
    }
    let last = chain.len().saturating_sub(1);
    for (place, (i, instance)) in chain.iter().enumerate() {
        let path = path.index(*i);
        match (instance.filter.is_terminal(), place == last) {
            (true, false) => reader.problem(&path, "is terminal, but other filters follow"),
            (false, true) => {
                reader.problem(&path, "is the last filter, but not terminal: the router must be last");
            }
            _ => {}
        }
        if instance.filter.is_terminal() && instance.disabled {
            reader.problem(&path.field("disabled"), "a terminal filter cannot be disabled");
        }
    }
    if chain.is_empty() {
        reader.problem(path, "no supported filter is left: the router must be last");
    }
    chain.into_iter().map(|(_, instance)| instance).collect()
}

/// Returns a filter, or `None` if its type is unknown. That is an error unless the filter is optional.
fn filter(
    message: &HttpFilter,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<XdsHttpFilter> {
    let (found, path) = match &message.config_type {
        Some(ConfigType::TypedConfig(any)) => {
            let path = path.field("typed_config");
            match filter_kind(any, &path, reader)? {
                HttpFilterKind::Router => return Some(XdsHttpFilter::Router),
                HttpFilterKind::Fault(fault) => return Some(XdsHttpFilter::Fault(fault)),
                HttpFilterKind::Unknown(found) => (found, path),
            }
        }
        Some(ConfigType::ConfigDiscovery(_)) => {
            ("is not supported".to_owned(), path.field("config_discovery"))
        }
        None => ("is required".to_owned(), path.field("typed_config")),
    };
    report_unsupported(message.is_optional, &found, &path, reader);
    None
}

fn report_unsupported(optional: bool, found: &str, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) {
    if optional {
        reader.warn(path, format!("{found}: skipped because it is optional"));
    } else {
        reader.problem(path, found);
    }
}

/// Returns the overrides in the field `typed_per_filter_config` of the message at `path`.
pub(super) fn overrides(
    messages: &BTreeMap<String, Any>,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> FilterOverrides {
    let path = path.field("typed_per_filter_config");
    let read = messages
        .iter()
        .filter_map(|(name, any)| Some((name.clone(), read_override(any, &path.key(name), reader)?)));
    read.collect()
}

fn read_override(any: &Any, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) -> Option<FilterOverride> {
    if !is::<FilterConfig>(any) {
        return override_config(any, false, path, reader);
    }
    let wrapper: FilterConfig = reader.decode(&any.value, path)?;
    if wrapper.disabled {
        return Some(FilterOverride::Off);
    }
    let path = path.field("config");
    if wrapper.config.is_none() {
        report_unsupported(wrapper.is_optional, "is required", &path, reader);
    }
    override_config(&wrapper.config?, wrapper.is_optional, &path, reader)
}

fn override_config(
    any: &Any,
    optional: bool,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<FilterOverride> {
    match filter_kind(any, path, reader)? {
        HttpFilterKind::Fault(fault) => return Some(FilterOverride::Use(XdsHttpFilter::Fault(fault))),
        HttpFilterKind::Router => reader.problem(path, "the router has no overrides"),
        HttpFilterKind::Unknown(found) => report_unsupported(optional, &found, path, reader),
    }
    None
}

/// Config of a filter by its type.
enum HttpFilterKind {
    Router,
    Fault(Arc<FaultConfig>),
    /// Unknown type, as text for an error.
    Unknown(String),
}

fn filter_kind(any: &Any, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) -> Option<HttpFilterKind> {
    if is::<Router>(any) {
        // A39: none of its fields is used.
        return reader.decode::<Router>(&any.value, path).map(|_| HttpFilterKind::Router);
    }
    if is::<HttpFault>(any) {
        let message = reader.decode(&any.value, path)?;
        return Some(HttpFilterKind::Fault(Arc::new(fault(&message, path, reader))));
    }
    let inner = if is::<xds::r#type::v3::TypedStruct>(any) {
        Some(reader.decode::<xds::r#type::v3::TypedStruct>(&any.value, path)?.type_url)
    } else if is::<udpa::r#type::v1::TypedStruct>(any) {
        Some(reader.decode::<udpa::r#type::v1::TypedStruct>(&any.value, path)?.type_url)
    } else {
        None
    };
    Some(HttpFilterKind::Unknown(match inner {
        Some(inner) => format!("has the unknown type {} (in a TypedStruct)", quoted(message_name(&inner))),
        None => format!("has the unknown type {}", quoted(message_name(&any.type_url))),
    }))
}

fn is<M: Name>(any: &Any) -> bool {
    message_name(&any.type_url) == M::full_name()
}

fn fault(message: &HttpFault, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) -> FaultConfig {
    for (name, count) in
        [("headers", message.headers.len()), ("downstream_nodes", message.downstream_nodes.len())]
    {
        if count > 0 {
            reader.warn(
                &path.field(name),
                "is ignored, as gRPC does: faults are injected by percentage only (A33)",
            );
        }
    }
    FaultConfig {
        delay: message.delay.and_then(|message| delay(message, &path.field("delay"), reader)),
        abort: message.abort.and_then(|message| abort(message, &path.field("abort"), reader)),
        max_active: message.max_active_faults,
    }
}

fn delay(
    message: FaultDelay,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<(DelaySpec, FaultFraction)> {
    let share = share(message.percentage, path, reader);
    let delay = match message.fault_delay_secifier {
        Some(FaultDelaySecifier::FixedDelay(value)) => {
            DelaySpec::Fixed(reader.duration(Some(&value), &path.field("fixed_delay"))?)
        }
        Some(FaultDelaySecifier::HeaderDelay(_)) => DelaySpec::Header,
        None => {
            reader.warn(path, "has neither fixed_delay nor header_delay: nothing is delayed");
            return None;
        }
    };
    Some((delay, share?))
}

fn abort(
    message: FaultAbort,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<(AbortSpec, FaultFraction)> {
    let share = share(message.percentage, path, reader);
    let (code, field, expected, found) = match message.error_type {
        Some(ErrorType::HttpStatus(status)) => (code_from_http(status), "http_status", "200 to 599", status),
        Some(ErrorType::GrpcStatus(code)) => (code_from_grpc(code), "grpc_status", "0 to 16", code),
        Some(ErrorType::HeaderAbort(_)) => return Some((AbortSpec::Header, share?)),
        None => {
            reader.warn(path, "has none of http_status, grpc_status and header_abort: nothing is aborted");
            return None;
        }
    };
    if code.is_none() {
        reader.problem(&path.field(field), format!("expected {expected}, found {found}"));
    }
    Some((AbortSpec::Fixed(AbortSpec::status(code?)), share?))
}

fn share(
    message: Option<FractionalPercent>,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<FaultFraction> {
    let path = path.field("percentage");
    let Some(fraction) = message else {
        reader.warn(&path, "is unset, which is 0: no call is affected");
        return Some(FaultFraction { per_million: 0, unit: 0 });
    };
    let (per_million, unit) = reader.fraction(fraction, &path)?;
    Some(FaultFraction { per_million, unit })
}
