package evenkeel.interop;

import com.google.gson.annotations.SerializedName;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.Parser;
import io.envoyproxy.controlplane.cache.Resources;
import io.envoyproxy.controlplane.cache.v3.Snapshot;
import io.envoyproxy.envoy.config.cluster.v3.Cluster;
import io.envoyproxy.envoy.config.endpoint.v3.ClusterLoadAssignment;
import io.envoyproxy.envoy.config.listener.v3.Listener;
import io.envoyproxy.envoy.config.route.v3.RouteConfiguration;
import io.envoyproxy.envoy.extensions.transport_sockets.tls.v3.Secret;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;

/**
 * One line of the driver. The resources are decoded, so that the cache can name them; what they hold as
 * google.protobuf.Any stays as it is.
 */
final class Configuration {
  /** The types that a snapshot of the library holds. */
  private static final Set<String> TYPES =
      Set.of(
          Resources.V3.CLUSTER_TYPE_URL,
          Resources.V3.ENDPOINT_TYPE_URL,
          Resources.V3.LISTENER_TYPE_URL,
          Resources.V3.ROUTE_TYPE_URL,
          Resources.V3.SECRET_TYPE_URL);

  String version = "";
  List<Resource> resources = List.of();

  static final class Resource {
    @SerializedName("type_url")
    String typeUrl = "";

    String name = "";
    String value = "";
  }

  Snapshot snapshot() throws InvalidProtocolBufferException {
    for (Resource resource : resources) {
      if (!TYPES.contains(resource.typeUrl)) {
        throw new IllegalArgumentException(
            "resource \"" + resource.name + "\": the cache does not hold type " + resource.typeUrl);
      }
    }
    return Snapshot.create(
        of(Resources.V3.CLUSTER_TYPE_URL, Cluster.parser()),
        of(Resources.V3.ENDPOINT_TYPE_URL, ClusterLoadAssignment.parser()),
        of(Resources.V3.LISTENER_TYPE_URL, Listener.parser()),
        of(Resources.V3.ROUTE_TYPE_URL, RouteConfiguration.parser()),
        of(Resources.V3.SECRET_TYPE_URL, Secret.parser()),
        version);
  }

  private <T extends Message> List<T> of(String typeUrl, Parser<T> parser)
      throws InvalidProtocolBufferException {
    List<T> messages = new ArrayList<>();
    for (Resource resource : resources) {
      if (!resource.typeUrl.equals(typeUrl)) {
        continue;
      }
      T message = parser.parseFrom(Base64.getDecoder().decode(resource.value));
      String name = Resources.getResourceName(message);
      if (!name.equals(resource.name)) {
        throw new IllegalArgumentException(
            "resource \"" + resource.name + "\" of type " + typeUrl + ": its message says \"" + name + "\"");
      }
      messages.add(message);
    }
    return messages;
  }
}
