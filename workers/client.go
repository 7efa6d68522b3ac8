package workers

import (
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"

	"berth/internal/lib/tracing"
)

// DefaultNamespace is where Berth's workflows live unless told otherwise.
const DefaultNamespace = "default"

// ClientOptions say how to reach Temporal.
type ClientOptions struct {
	// Base holds what only the program knows, such as TLS and credentials.
	Base      client.Options
	Address   string // host:port
	Namespace string // "": DefaultNamespace
	Identity  string // shown in Temporal's UI, such as berthd@host
	Logger    *slog.Logger
	Traces    *tracing.Tracing // nil: none
}

// Dial returns a client that connects when it is first used, so that it does
// not fail while Temporal is away. Every program of Berth must get its client
// here: payloads and logs agree on it. Close it.
func Dial(o ClientOptions) (client.Client, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	opts := o.Base
	opts.HostPort, opts.Namespace, opts.Identity = o.Address, o.Namespace, o.Identity
	if opts.Namespace == "" {
		opts.Namespace = DefaultNamespace
	}
	if opts.ConnectionOptions.GrpcCompression == nil {
		// The SDK's default is gzip. Berth's calls are a few hundred bytes each, for
		// which setting up a compressor costs both sides more than the bytes saved.
		opts.ConnectionOptions.GrpcCompression = &client.GrpcCompressionNone{}
	}
	opts.Logger = sdklog.NewStructuredLogger(o.Logger)
	opts.DataConverter = limited{converter.GetDefaultDataConverter()}
	if o.Traces != nil {
		i, err := traced(o.Traces)
		if err != nil {
			return nil, fmt.Errorf("interceptor of traces: %w", err)
		}
		opts.Interceptors = append(opts.Interceptors, i)
	}
	c, err := client.NewLazyClient(opts)
	if err != nil {
		return nil, fmt.Errorf("temporal client for %s: %w", o.Address, err)
	}
	return c, nil
}
