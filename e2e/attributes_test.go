package e2e_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"

	"berth"
	"berth/wire"
	"berth/workers"
)

// addsNoAttributesTwice: each replica asks twice a minute for as long as it
// lives, and each request to add attributes would cost the server a connection.
func addsNoAttributesTwice(t *testing.T, s *stack) {
	var looks, adds atomic.Int32
	count := func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		switch {
		case strings.HasSuffix(method, "/DescribeNamespace"):
			looks.Add(1)
		case strings.HasSuffix(method, "/AddSearchAttributes"):
			adds.Add(1)
		}
		return invoke(ctx, method, req, reply, c, opts...)
	}
	c, err := workers.Dial(workers.ClientOptions{Address: s.address, Base: client.Options{
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(count)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if err := workers.AddSearchAttributes(t.Context(), c, ""); err != nil {
			t.Fatal(err)
		}
	}
	if looks.Load() != 3 || adds.Load() != 0 {
		t.Errorf("looked %d times and added %d times; want 3 and 0", looks.Load(), adds.Load())
	}
}

// isDescribed: operators who look for a job in Temporal find it by its search attributes, and
// its memo leads back.
func isDescribed(t *testing.T, s *stack, job wire.Job) {
	t.Helper()
	d, err := s.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(job.ID), "")
	if err != nil {
		t.Fatal(err)
	}
	info := d.GetWorkflowExecutionInfo()
	got := map[string]string{}
	fields := map[string]map[string]*commonpb.Payload{"memo ": info.GetMemo().GetFields(),
		"": info.GetSearchAttributes().GetIndexedFields()}
	for prefix, list := range fields {
		for name, payload := range list {
			var text string
			if err := converter.GetDefaultDataConverter().FromPayload(payload, &text); err == nil {
				got[prefix+name] = text
			}
		}
	}
	for name, want := range map[string]string{
		"memo name": job.Name, "memo image": job.Spec.Image, "memo tenant": string(job.Tenant),
		berth.AttributeTenant: string(job.Tenant), berth.AttributeKind: "job", wire.AttributeJobName: job.Name,
		wire.AttributeOutcome: string(job.Status),
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if got[wire.AttributeUser] == "" {
		t.Errorf("the submitter is not in %v", got)
	}
}
