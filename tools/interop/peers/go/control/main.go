// Program control is go-control-plane as a control plane that a driver feeds over stdin: one JSON line is one
// configuration, in force for every node. It serves ADS, state of the world and delta, on a free port of the
// loopback interface, tells `version V` when a configuration is in force and `nack TYPE_URL MESSAGE` for every
// refusal, and ends with stdin. Load reporting is not served.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
)

// everyNode is the one group of nodes that the cache knows.
const everyNode = "every node"

// The snapshot cache answers a NACK with the same resources at once. Without a pause, one refused resource keeps
// client and server spinning until the next configuration.
const nackPause = 50 * time.Millisecond

func main() {
	if err := run(os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "control: %v\n", err)
		os.Exit(1)
	}
}

func run(configurations io.Reader) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("no port to listen on: %w", err)
	}
	// The cache's ADS mode would hold back every response until all resources of a type are asked for, which a
	// gRPC client, asking for what it uses, may never do.
	cache := cachev3.NewSnapshotCache(false, oneGroup{}, nil)
	callbacks := serverv3.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discoveryv3.DiscoveryRequest) error {
			tellRefusal(request.GetTypeUrl(), request.GetErrorDetail())
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, request *discoveryv3.DeltaDiscoveryRequest) error {
			tellRefusal(request.GetTypeUrl(), request.GetErrorDetail())
			return nil
		},
	}
	ctx := context.Background()
	// gRPC clients never mean "everything" by naming nothing.
	ads := serverv3.NewServer(ctx, cache, callbacks, sotwv3.DeactivateLegacyWildcard())
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime:             time.Second,
		PermitWithoutStream: true,
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)

	ended := make(chan error, 1)
	go func() { ended <- follow(ctx, configurations, cache) }()
	select {
	case err = <-served:
	case err = <-ended:
	}
	return err
}

// follow puts each configuration in force as it comes, until there are no more.
func follow(ctx context.Context, configurations io.Reader, cache cachev3.SnapshotCache) error {
	lines := bufio.NewReader(configurations)
	for {
		line, err := lines.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := put(ctx, line, cache); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
	}
}

func put(ctx context.Context, line []byte, cache cachev3.SnapshotCache) error {
	var config configuration
	if err := json.Unmarshal(line, &config); err != nil {
		return fmt.Errorf("expected a configuration as one line of JSON: %w", err)
	}
	snapshot, err := config.snapshot()
	if err != nil {
		return fmt.Errorf("version %s: %w", config.Version, err)
	}
	if err := cache.SetSnapshot(ctx, everyNode, snapshot); err != nil {
		return fmt.Errorf("version %s: %w", config.Version, err)
	}
	fmt.Printf("version %s\n", config.Version)
	return nil
}

// configuration is one line of the driver.
type configuration struct {
	Version   string     `json:"version"`
	Resources []resource `json:"resources"`
}

type resource struct {
	TypeURL string `json:"type_url"`
	Name    string `json:"name"`
	Value   []byte `json:"value"`
}

// snapshot decodes the resources, so that the cache can name them. What they hold as google.protobuf.Any stays as
// it is.
func (c *configuration) snapshot() (*cachev3.Snapshot, error) {
	// Each of these types has the version even when it has no resource: a type without a version is one that the
	// cache never answers for.
	byType := map[resourcev3.Type][]types.Resource{
		resourcev3.ListenerType: nil,
		resourcev3.RouteType:    nil,
		resourcev3.ClusterType:  nil,
		resourcev3.EndpointType: nil,
	}
	for _, r := range c.Resources {
		message, err := (&anypb.Any{TypeUrl: r.TypeURL, Value: r.Value}).UnmarshalNew()
		if err != nil {
			return nil, fmt.Errorf("resource %q of type %s: %w", r.Name, r.TypeURL, err)
		}
		if name := cachev3.GetResourceName(message); name != r.Name {
			return nil, fmt.Errorf("resource %q of type %s: its message says %q", r.Name, r.TypeURL, name)
		}
		byType[r.TypeURL] = append(byType[r.TypeURL], message)
	}
	return cachev3.NewSnapshot(c.Version, byType)
}

func tellRefusal(typeURL string, refusal *status.Status) {
	if refusal == nil {
		return
	}
	fmt.Printf("nack %s %s\n", typeURL, strings.Join(strings.Fields(refusal.GetMessage()), " "))
	time.Sleep(nackPause)
}

// oneGroup puts all nodes into one group, whatever their ids.
type oneGroup struct{}

func (oneGroup) ID(*corev3.Node) string { return everyNode }
