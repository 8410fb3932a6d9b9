// Program server is gRPC's xDS interop server on grpc-go. main.go holds the command line and what is served where,
// service.go the calls, behavior.go what a call may ask the server to do, orca.go the load reports.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/xds"

	"evenkeel/interop/peers/go/internal/args"
)

type options struct {
	port            int
	maintenancePort int
	serverID        string
	hostname        string
	secure          bool
	load            load
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "server: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var opts options
	set := flag.NewFlagSet("server", flag.ContinueOnError)
	set.IntVar(&opts.port, "port", 8080, "port of the test service")
	set.IntVar(&opts.maintenancePort, "maintenance_port", 8081, "port of health and admin services in secure mode; without it they are on --port")
	set.StringVar(&opts.serverID, "server_id", "go_server", "id in the responses")
	set.StringVar(&opts.hostname, "host_name_override", "", "host name in the responses, if not the machine's")
	set.BoolVar(&opts.secure, "secure_mode", false, "take security from the control plane")
	set.Float64Var(&opts.load.utilization, "load_utilization", 0, "application utilization to report for every call and out of band; 0 is none")
	set.Float64Var(&opts.load.qps, "load_qps", 0, "queries per second to report for every call and out of band; 0 is none")
	if err := args.Parse(set, os.Args[1:], os.Stderr); err != nil {
		return err
	}
	if opts.hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("host name: %w", err)
		}
		opts.hostname = name
	}
	if opts.secure {
		return serveSecure(opts)
	}
	return servePlain(opts)
}

// servePlain serves everything on one port.
func servePlain(opts options) error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", opts.port))
	if err != nil {
		return fmt.Errorf("--port %d: %w", opts.port, err)
	}
	server := grpc.NewServer(orca.CallMetricsServerOption(nil))
	if err := registerTest(server, opts); err != nil {
		return err
	}
	if err := registerMaintenance(server); err != nil {
		return err
	}
	fmt.Printf("listening on %d\n", portOf(listener))
	return server.Serve(listener)
}

// serveSecure serves the calls as the control plane says, and the rest in plain text on a port of its own. A
// control plane that asks for no security gets plain text.
func serveSecure(opts options) error {
	// The name of the Listener resource has the address in it, and control planes expect 0.0.0.0 there.
	listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", opts.port))
	if err != nil {
		return fmt.Errorf("--port %d: %w", opts.port, err)
	}
	maintenanceListener, err := net.Listen("tcp", fmt.Sprintf(":%d", opts.maintenancePort))
	if err != nil {
		return fmt.Errorf("--maintenance_port %d: %w", opts.maintenancePort, err)
	}
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return fmt.Errorf("xds credentials: %w", err)
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds), orca.CallMetricsServerOption(nil), xds.ServingModeCallback(tellMode))
	if err != nil {
		return fmt.Errorf("xds server: %w", err)
	}
	if err := registerTest(server, opts); err != nil {
		return err
	}
	maintenance := grpc.NewServer()
	if err := registerMaintenance(maintenance); err != nil {
		return err
	}
	fmt.Printf("maintenance on %d\n", portOf(maintenanceListener))
	fmt.Printf("listening on %d\n", portOf(listener))
	ended := make(chan error, 2)
	go func() { ended <- maintenance.Serve(maintenanceListener) }()
	go func() { ended <- server.Serve(listener) }()
	return <-ended
}

func tellMode(address net.Addr, change xds.ServingModeChangeArgs) {
	fmt.Fprintf(os.Stderr, "server: %v is %v: %v\n", address, change.Mode, change.Err)
}

// registerTest registers the calls and, because reports come over the same connections, the load reports.
func registerTest(server grpc.ServiceRegistrar, opts options) error {
	reports := newReports(opts.load)
	testpb.RegisterTestServiceServer(server, &testService{
		hostname: opts.hostname,
		serverID: opts.serverID,
		load:     opts.load,
		reports:  reports,
	})
	return registerReports(server, reports)
}

// registerMaintenance registers health, the service that sets it, and the admin services of grpc-go.
func registerMaintenance(server grpc.ServiceRegistrar) error {
	checks := health.NewServer()
	healthpb.RegisterHealthServer(server, checks)
	testpb.RegisterXdsUpdateHealthServiceServer(server, newUpdateHealth(checks))
	if _, err := admin.Register(server); err != nil {
		return fmt.Errorf("admin services: %w", err)
	}
	return nil
}

// updateHealth sets what the health service says. grpc-go has no hook server, so SendHookRequest is unimplemented.
type updateHealth struct {
	testpb.UnimplementedXdsUpdateHealthServiceServer
	checks *health.Server
}

func newUpdateHealth(checks *health.Server) *updateHealth {
	update := &updateHealth{checks: checks}
	update.set(healthpb.HealthCheckResponse_SERVING)
	return update
}

func (u *updateHealth) set(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{"", testpb.TestService_ServiceDesc.ServiceName} {
		u.checks.SetServingStatus(service, status)
	}
}

func (u *updateHealth) SetServing(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	u.set(healthpb.HealthCheckResponse_SERVING)
	return &testpb.Empty{}, nil
}

func (u *updateHealth) SetNotServing(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	u.set(healthpb.HealthCheckResponse_NOT_SERVING)
	return &testpb.Empty{}, nil
}

func portOf(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }
