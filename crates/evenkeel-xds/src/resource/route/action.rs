//! Parsing of route actions.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_proto::envoy::config::route::v3 as proto;
use evenkeel_proto::envoy::config::route::v3::route::Action as ActionKind;
use evenkeel_proto::envoy::config::route::v3::route_action::hash_policy::PolicySpecifier;
use evenkeel_proto::envoy::config::route::v3::route_action::{ClusterSpecifier, HostRewriteSpecifier};
use evenkeel_proto::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use evenkeel_proto::prost_types::Duration;

use super::{filters, retry};
use crate::FieldPath;
use crate::resource::message_name;
use crate::resource::reader::ResourceReader;
use crate::routing::{
    FilterOverrides, ForwardAction, HashPolicy, HashSource, HeaderName, RegexRewrite, RouteAction,
    StreamLimit, WeightedCluster, XdsRetryPolicy,
};
use crate::text::quoted;

/// Reason why a route is omitted.
pub(super) enum RouteRejection {
    /// gRPC does not support the route. A warning was recorded.
    Skipped,
    /// The route is invalid. An error was recorded.
    Invalid,
}

/// Inputs from the enclosing messages of a route.
pub(super) struct RouteContext<'a> {
    /// Names of the cluster specifier plugins.
    pub(super) plugins: &'a BTreeSet<&'a str>,
    /// Retry policy of the virtual host.
    pub(super) retry: Option<Arc<XdsRetryPolicy>>,
}

/// Returns the names of the cluster specifier plugins. None is supported, so each must be optional, and its
/// routes are skipped.
pub(super) fn plugins<'a>(
    messages: &'a [proto::ClusterSpecifierPlugin],
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (i, plugin) in messages.iter().enumerate() {
        let extension = plugin.extension.clone().unwrap_or_default();
        let type_url = extension.typed_config.map(|config| config.type_url).unwrap_or_default();
        if !plugin.is_optional {
            let text = format!(
                "cluster specifier plugin {} has the unknown type {}",
                quoted(&extension.name),
                quoted(message_name(&type_url))
            );
            reader.problem(&path.index(i), text);
        }
        names.extend(plugin.extension.as_ref().map(|extension| extension.name.as_str()));
    }
    names
}

pub(super) fn read(
    message: Option<&ActionKind>,
    path: &FieldPath<'_>,
    context: &RouteContext<'_>,
    reader: &mut ResourceReader<'_>,
) -> Result<RouteAction, RouteRejection> {
    let kind = match message {
        Some(ActionKind::Route(message)) => {
            return forward(message, &path.field("route"), context, reader).map(RouteAction::Forward);
        }
        Some(ActionKind::NonForwardingAction(_)) => "non_forwarding_action",
        Some(ActionKind::Redirect(_)) => "redirect",
        Some(ActionKind::DirectResponse(_)) => "direct_response",
        None => "no supported action",
    };
    reader.warn(path, format!("has {kind}: calls that match it fail (A36)"));
    Ok(RouteAction::Unsupported { kind })
}

fn forward(
    message: &proto::RouteAction,
    path: &FieldPath<'_>,
    context: &RouteContext<'_>,
    reader: &mut ResourceReader<'_>,
) -> Result<ForwardAction, RouteRejection> {
    let clusters = clusters(message, path, context, reader);
    if let Err(RouteRejection::Skipped) = clusters {
        return Err(RouteRejection::Skipped);
    }
    let limit = limit(message, path, reader);
    let retry = match &message.retry_policy {
        // A policy without retryable codes also replaces the virtual host's policy.
        Some(policy) => retry::read(policy, &path.field("retry_policy"), reader),
        None => context.retry.clone(),
    };
    let hash = (message.hash_policy.iter().enumerate())
        .filter_map(|(i, policy)| hash_policy(policy, &path.field("hash_policy").index(i), reader))
        .collect();
    let auto_host_rewrite =
        matches!(message.host_rewrite_specifier, Some(HostRewriteSpecifier::AutoHostRewrite(true)));
    if auto_host_rewrite && !reader.trusted {
        let text = "is ignored: the bootstrap does not mark this server as trusted_xds_server (A81)";
        reader.warn(&path.field("auto_host_rewrite"), text);
    }
    let auto_host_rewrite = auto_host_rewrite && reader.trusted;
    Ok(ForwardAction { clusters: clusters?, limit, retry, hash, auto_host_rewrite })
}

fn clusters(
    message: &proto::RouteAction,
    path: &FieldPath<'_>,
    context: &RouteContext<'_>,
    reader: &mut ResourceReader<'_>,
) -> Result<Vec<WeightedCluster>, RouteRejection> {
    match &message.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => {
            reader.name(name, &path.field("cluster"));
            let name = name.as_str().into();
            Ok(vec![WeightedCluster { name, weight: 1, overrides: FilterOverrides::new() }])
        }
        Some(ClusterSpecifier::WeightedClusters(message)) => {
            weighted_clusters(message, &path.field("weighted_clusters"), reader)
        }
        Some(ClusterSpecifier::ClusterSpecifierPlugin(name)) => {
            let path = path.field("cluster_specifier_plugin");
            if context.plugins.contains(name.as_str()) {
                reader.warn(&path, format!("{} is of an unknown type: the route is skipped", quoted(name)));
                return Err(RouteRejection::Skipped);
            }
            reader.problem(&path, format!("{} is not among cluster_specifier_plugins", quoted(name)));
            Err(RouteRejection::Invalid)
        }
        Some(ClusterSpecifier::ClusterHeader(_)) => {
            reader.warn(&path.field("cluster_header"), "is not supported: the route is skipped");
            Err(RouteRejection::Skipped)
        }
        None => {
            reader.warn(path, "has no supported cluster specifier: the route is skipped");
            Err(RouteRejection::Skipped)
        }
    }
}

fn weighted_clusters(
    message: &proto::WeightedCluster,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Result<Vec<WeightedCluster>, RouteRejection> {
    let mut clusters = Vec::new();
    let mut sum = 0u64;
    for (i, cluster) in message.clusters.iter().enumerate() {
        let weight = cluster.weight.unwrap_or_default();
        // Weights of 0 are dropped (VAL-R3).
        if weight == 0 {
            continue;
        }
        sum = sum.saturating_add(u64::from(weight));
        let list = path.field("clusters");
        let path = list.index(i);
        if cluster.name.is_empty() && !cluster.cluster_header.is_empty() {
            reader.problem(&path.field("cluster_header"), "is not supported: the cluster must be named");
        } else {
            reader.name(&cluster.name, &path.field("name"));
        }
        let overrides = filters::overrides(&cluster.typed_per_filter_config, &path, reader);
        clusters.push(WeightedCluster { name: cluster.name.as_str().into(), weight, overrides });
    }
    if sum > u32::MAX.into() {
        reader.problem(path, format!("the weights sum up to {sum}; at most {} is allowed", u32::MAX));
        return Err(RouteRejection::Invalid);
    }
    if clusters.is_empty() {
        reader.problem(path, "expected at least one cluster with a weight above 0, found none");
        return Err(RouteRejection::Invalid);
    }
    if message.total_weight.is_some_and(|total| u64::from(total) != sum) {
        reader.warn(&path.field("total_weight"), "is ignored: the sum of the weights is used");
    }
    Ok(clusters)
}

fn limit(message: &proto::RouteAction, path: &FieldPath<'_>, reader: &mut ResourceReader<'_>) -> StreamLimit {
    // A31: these timeouts start at points that do not exist in gRPC.
    for (name, value) in [("timeout", &message.timeout), ("max_grpc_timeout", &message.max_grpc_timeout)] {
        if value.as_ref().is_some_and(|value| *value != Duration::default()) {
            reader.warn(&path.field(name), "is ignored: gRPC uses only max_stream_duration (A31)");
        }
    }
    let Some(message) = &message.max_stream_duration else { return StreamLimit::default() };
    let path = path.field("max_stream_duration");
    let own = path.field("max_stream_duration");
    let header = path.field("grpc_timeout_header_max");
    StreamLimit {
        max_stream_duration: reader.duration(message.max_stream_duration.as_ref(), &own),
        grpc_timeout_header_max: reader.duration(message.grpc_timeout_header_max.as_ref(), &header),
    }
}

fn hash_policy(
    message: &proto::route_action::HashPolicy,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<HashPolicy> {
    let source = match &message.policy_specifier {
        Some(PolicySpecifier::Header(header)) => {
            let path = path.field("header");
            reader.name(&header.header_name, &path.field("header_name"));
            let rewrite = match &header.regex_rewrite {
                Some(message) => Some(rewrite(message, &path.field("regex_rewrite"), reader)?),
                None => None,
            };
            HashSource::Header(HeaderName::new(&header.header_name), rewrite)
        }
        Some(PolicySpecifier::FilterState(state)) if state.key == "io.grpc.channel_id" => {
            HashSource::ChannelId
        }
        _ => {
            let text = "yields no hash: gRPC supports header, and filter_state with the key io.grpc.channel_id (A42)";
            reader.warn(path, text);
            HashSource::Unsupported
        }
    };
    Some(HashPolicy { source, terminal: message.terminal })
}

fn rewrite(
    message: &RegexMatchAndSubstitute,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<RegexRewrite> {
    let pattern = reader.required(message.pattern.as_ref(), &path.field("pattern"))?;
    let pattern = reader.search(&pattern.regex, &path.field("pattern").field("regex"))?;
    let substitution = substitution(&message.substitution, pattern.captures_len());
    if substitution.is_none() {
        let text = format!(
            "expected text with \\\\ for a backslash and \\0 to \\{} for groups of the pattern, found {}",
            pattern.captures_len().saturating_sub(1).min(9),
            quoted(&message.substitution)
        );
        reader.problem(&path.field("substitution"), text);
    }
    Some(RegexRewrite { pattern, substitution: substitution? })
}

/// Translates a substitution from RE2 syntax (`\1`) to that of the `regex` crate (`${1}`). `groups` is the
/// number of capture groups, including the whole match.
fn substitution(text: &str, groups: usize) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // `$` starts a group in the syntax of the `regex` crate, so it is doubled.
            '$' => out.push_str("$$"),
            '\\' => match letters.next()? {
                '\\' => out.push('\\'),
                digit => {
                    digit.to_digit(10).filter(|group| (*group as usize) < groups)?;
                    // In braces, so that a digit that follows is not part of the number.
                    out.extend(['$', '{', digit, '}']);
                }
            },
            letter => out.push(letter),
        }
    }
    Some(out)
}
