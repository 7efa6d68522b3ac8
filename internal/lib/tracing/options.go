package tracing

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Protocols that a collector may be spoken to in.
const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// Options name the collector and the exporting process.
type Options struct {
	Service  string // berthd or berth-agent
	Version  string
	Instance string // which process of the service

	// Endpoint is the URL of an OTLP collector, path included. "": tracing is off,
	// unless there is an Exporter.
	Endpoint string
	Protocol string // http/protobuf ("") or grpc
	Sampler  string // one of the names of OTEL_TRACES_SAMPLER; "": parentbased_always_on
	Ratio    float64

	// Exporter takes the spans in place of a collector, for tests.
	Exporter sdktrace.SpanExporter
	Logger   *slog.Logger // nil: discard
}

// FromEnvironment returns the options of the standard variables (OTEL_…), which
// lookup reads. A flag's endpoint takes precedence. The SDK itself reads headers,
// certificates, time-outs, the queue's size and attributes of the resource.
func FromEnvironment(lookup func(string) (string, bool), endpoint string) (Options, error) {
	get := func(names ...string) (name, value string) {
		for _, n := range names {
			if v, _ := lookup(n); strings.TrimSpace(v) != "" {
				return n, strings.TrimSpace(v)
			}
		}
		return names[len(names)-1], ""
	}
	var o Options
	if _, off := get("OTEL_SDK_DISABLED"); strings.EqualFold(off, "true") {
		return o, nil
	}
	switch name, exporter := get("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return o, nil
	default:
		return o, fmt.Errorf("%s %q: allowed are otlp, none", name, exporter)
	}
	name, whole := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if endpoint != "" {
		name, whole = "--otlp-endpoint", ""
	} else if whole == "" {
		name, endpoint = get("OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	if endpoint == "" && whole == "" {
		return o, nil
	}
	var err error
	if o.Protocol, err = protocol(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
		"OTEL_EXPORTER_OTLP_PROTOCOL")); err != nil {
		return o, err
	}
	if o.Endpoint, err = address(name, cmp.Or(whole, endpoint), o.Protocol == protocolHTTP && whole == ""); err != nil {
		return o, err
	}
	_, o.Sampler = get("OTEL_TRACES_SAMPLER")
	o.Ratio = 1
	if name, arg := get("OTEL_TRACES_SAMPLER_ARG"); arg != "" {
		if o.Ratio, err = strconv.ParseFloat(arg, 64); err != nil || !(o.Ratio >= 0 && o.Ratio <= 1) {
			return o, fmt.Errorf("%s %q: allowed are 0 to 1", name, arg)
		}
	}
	_, err = o.sampler()
	return o, err
}

// protocol validates the setting of a protocol; HTTP is the default.
func protocol(name, value string) (string, error) {
	switch value {
	case "", protocolHTTP:
		return protocolHTTP, nil
	case protocolGRPC:
		return protocolGRPC, nil
	}
	return "", fmt.Errorf("%s %q: allowed are %s, %s", name, value, protocolHTTP, protocolGRPC)
}

// address returns an endpoint in the exporters' form. If the setting is a collector's address for
// all signals, the path for traces is added.
func address(name, value string, addPath bool) (string, error) {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // without the URL, in which a password may be
		}
		if err != nil {
			return "", fmt.Errorf("%s: write http://HOST:PORT or https://HOST:PORT: %w", name, err)
		}
		return "", fmt.Errorf("%s %q: write http://HOST:PORT or https://HOST:PORT", name, u.Redacted())
	}
	if addPath {
		u = u.JoinPath("v1", "traces")
	}
	return u.String(), nil
}

// on reports whether spans are exported: to a collector, or to a given exporter.
func (o Options) on() bool { return o.Endpoint != "" || o.Exporter != nil }

// LogValue shows the options without possible passwords.
func (o Options) LogValue() slog.Value {
	if !o.on() {
		return slog.StringValue("off")
	}
	shown := o.Endpoint
	if u, err := url.Parse(shown); err == nil {
		u.RawQuery = ""
		shown = u.Redacted()
	}
	return slog.GroupValue(slog.String("endpoint", shown), slog.String("protocol", o.Protocol),
		slog.String("sampler", o.Sampler), slog.Float64("ratio", o.Ratio))
}
