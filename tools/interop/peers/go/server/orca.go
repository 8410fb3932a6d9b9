// The load reports: with a call what the call asks for, out of band what a FullDuplexCall asked for last, and with
// both the load of the command line.

package main

import (
	"context"
	"sync/atomic"
	"time"

	orcapb "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"
)

// minInterval is the shortest time between two reports out of band.
const minInterval = 100 * time.Millisecond

// load is what the command line says to report; 0 is not reported.
type load struct {
	utilization float64
	qps         float64
}

// report reports the load with a call.
func (l load) report(ctx context.Context) {
	if l == (load{}) {
		// Asking for the recorder already makes grpc-go send a report.
		return
	}
	if recorder := orca.CallMetricsRecorderFromContext(ctx); recorder != nil {
		l.record(recorder)
	}
}

func (l load) record(recorder orca.ServerMetricsRecorder) {
	if l.utilization > 0 {
		recorder.SetApplicationUtilization(l.utilization)
	}
	if l.qps > 0 {
		recorder.SetQPS(l.qps)
	}
}

// reportCall reports with a call what it asks for.
func reportCall(ctx context.Context, report *testpb.TestOrcaReport) {
	if report == nil {
		return
	}
	recorder := orca.CallMetricsRecorderFromContext(ctx)
	if recorder == nil {
		return
	}
	record(recorder, report)
	for name, cost := range report.GetRequestCost() {
		recorder.SetRequestCost(name, cost)
	}
}

func record(recorder orca.ServerMetricsRecorder, report *testpb.TestOrcaReport) {
	recorder.SetCPUUtilization(report.GetCpuUtilization())
	recorder.SetMemoryUtilization(report.GetMemoryUtilization())
	for name, utilization := range report.GetUtilization() {
		recorder.SetNamedUtilization(name, utilization)
	}
}

// reports is what is reported out of band. Each report replaces the one before it whole.
type reports struct {
	load    load
	current atomic.Pointer[orca.ServerMetrics]
	// turn holds a token while no call sets reports. A call that sets them keeps its turn to its end, so that
	// cases that run at the same time do not see each other's.
	turn chan struct{}
}

func newReports(load load) *reports {
	reports := &reports{load: load, turn: make(chan struct{}, 1)}
	reports.turn <- struct{}{}
	reports.set(nil)
	return reports
}

// ServerMetrics makes reports the source of grpc-go's service.
func (r *reports) ServerMetrics() *orca.ServerMetrics { return r.current.Load() }

func (r *reports) set(report *testpb.TestOrcaReport) {
	recorder := orca.NewServerMetricsRecorder()
	r.load.record(recorder)
	if report != nil {
		record(recorder, report)
	}
	r.current.Store(recorder.ServerMetrics())
}

// enter waits for the turn of a call. leave ends it.
func (r *reports) enter(ctx context.Context) (leave func(), err error) {
	select {
	case <-r.turn:
		return func() { r.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return func() {}, status.FromContextError(ctx.Err()).Err()
	}
}

// registerReports registers grpc-go's own service for reports out of band, at the pace that clients ask for.
func registerReports(server grpc.ServiceRegistrar, reports *reports) error {
	service, err := orca.NewService(orca.ServiceOptions{ServerMetricsProvider: reports})
	if err != nil {
		return err
	}
	orcapb.RegisterOpenRcaServiceServer(server, &pacedReports{service})
	return nil
}

// pacedReports sends the reports of grpc-go's service more often than the 30 seconds below which its public
// interface does not go. The service sends a report as soon as a stream opens, so it is given a short stream for
// every report.
type pacedReports struct {
	*orca.Service
}

func (p *pacedReports) StreamCoreMetrics(request *orcapb.OrcaLoadReportRequest, stream orcapb.OpenRcaService_StreamCoreMetricsServer) error {
	interval := max(request.GetReportInterval().AsDuration(), minInterval)
	for stream.Context().Err() == nil {
		if err := p.once(interval, request, stream); err != nil {
			return err
		}
	}
	return status.FromContextError(stream.Context().Err()).Err()
}

// once sends one report and waits for the interval to pass.
func (p *pacedReports) once(interval time.Duration, request *orcapb.OrcaLoadReportRequest, stream orcapb.OpenRcaService_StreamCoreMetricsServer) error {
	ctx, cancel := context.WithTimeout(stream.Context(), interval)
	defer cancel()
	err := p.Service.StreamCoreMetrics(request, &shortStream{stream, ctx})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type shortStream struct {
	orcapb.OpenRcaService_StreamCoreMetricsServer
	ctx context.Context
}

func (s *shortStream) Context() context.Context { return s.ctx }
