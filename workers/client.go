package workers

import (
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"

	"berth/internal/lib/tracing"
)

// DefaultNamespace is the Temporal namespace of Berth's workflows, by default.
const DefaultNamespace = "default"

// ClientOptions configure the connection to Temporal.
type ClientOptions struct {
	// Base holds options known only to the program, such as TLS and credentials.
	Base      client.Options
	Address   string // host:port
	Namespace string // "": DefaultNamespace
	Identity  string // shown in Temporal's UI, such as berthd@host
	Logger    *slog.Logger
	Traces    *tracing.Tracing // nil: none
}

// Dial returns a client that connects at its first use, so that Dial succeeds while
// Temporal is down. Every program of Berth must get its client here, so that all agree on
// payloads and logs. The caller closes the client.
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
