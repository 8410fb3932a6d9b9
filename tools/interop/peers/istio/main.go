// Program istiod starts Istio's control plane with a folder of YAML files as its configuration and an
// empty cluster in memory for Kubernetes.
// It serves ADS in plain text on the loopback interface, prints `listening on PORT` when its caches are filled, and
// ends with stdin. Everything else on stdout is istiod's own log.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"syscall"
	"time"
	"unsafe"

	"istio.io/istio/pilot/pkg/bootstrap"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/log"
)

// settings are read by istiod's packages while they initialise, which is before main. The program therefore starts
// itself again with them. All others keep Istio's defaults.
var settings = map[string]string{
	// Without Kubernetes there is neither a certificate authority nor a token to authenticate a client with.
	"ENABLE_CA_SERVER":    "false",
	"PILOT_CERT_PROVIDER": "none",
	"XDS_AUTH":            "false",
	"POD_NAMESPACE":       "istio-system",
}

// restarted marks the process that has the settings.
const restarted = "EVENKEEL_ISTIOD_RESTARTED"

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "istiod: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	configuration := flag.String("config", "", "folder of the configuration's YAML files")
	mesh := flag.String("mesh", "", "file with the mesh configuration")
	port := flag.Int("port", 0, "port of the discovery service; any if 0")
	flag.Parse()
	if *configuration == "" {
		return fmt.Errorf("--config is missing")
	}
	if os.Getenv(restarted) == "" {
		return restart()
	}
	if *port == 0 {
		free, err := freePort()
		if err != nil {
			return err
		}
		*port = free
	}
	if err := log.Configure(log.DefaultOptions()); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	args := bootstrap.NewPilotArgs(func(args *bootstrap.PilotArgs) {
		args.ServerOptions = bootstrap.DiscoveryServerOptions{
			GRPCAddr: fmt.Sprintf("127.0.0.1:%d", *port),
			HTTPAddr: "127.0.0.1:0",
			// Served by HTTPAddr if empty.
			MonitoringAddr: "",
			// Not served if empty.
			HTTPSAddr:      "",
			SecureGRPCAddr: "",
			TLSOptions:     bootstrap.TLSOptions{TLSMinVersion: bootstrap.TLSMinVersion1_2},
		}
		args.MeshConfigFile = *mesh
		args.RegistryOptions.FileDir = *configuration
		args.RegistryOptions.Registries = nil
		args.RegistryOptions.KubeOptions.DomainSuffix = "cluster.local"
		args.RegistryOptions.KubeOptions.ClusterID = "evenkeel"
		args.ShutdownDuration = time.Second
	})
	if err := args.Complete(); err != nil {
		return err
	}
	server, err := bootstrap.NewServer(args, emptyKubernetes)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	if err := server.Start(stop); err != nil {
		return err
	}
	fmt.Printf("listening on %d\n", *port)
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(stop)
	server.WaitUntilCompletion()
	return nil
}

// emptyKubernetes gives istiod Istio's own in-memory client of an empty cluster. This version of istiod reads the
// namespaces of a client even if all of its configuration comes from files. The field is not exported.
func emptyKubernetes(server *bootstrap.Server) {
	field := reflect.ValueOf(server).Elem().FieldByName("kubeClient")
	field = reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
	field.Set(reflect.ValueOf(kube.NewFakeClient()))
}

// restart replaces this process by the same program with istiod's settings.
func restart() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	environment := append(os.Environ(), restarted+"=yes")
	for name, value := range settings {
		environment = append(environment, name+"="+value)
	}
	return syscall.Exec(program, os.Args, environment)
}

// freePort returns a port that was free a moment ago. Istiod opens its listener itself and does not return its address.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no port to listen on: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
