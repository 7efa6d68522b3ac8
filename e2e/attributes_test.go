package e2e_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

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
