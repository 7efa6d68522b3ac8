package api

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/spec"
)

// newHuma returns the framework that describes every operation in OpenAPI 3.1, parses
// inputs and renders answers. The documentation page is Berth's own (pages.go), since
// huma's page loads its scripts from another host.
func newHuma(e *echo.Echo, version string) huma.API {
	config := huma.DefaultConfig("Berth", version)
	config.Info.Description = "A durable job orchestrator for GPU and CPU clusters. Errors are RFC 9457 " +
		"problem+json with a stable `code`."
	config.CreateHooks = nil
	config.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	config.DocsPath, config.SchemasPath = "", ""
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "berth_<id>_<secret>"},
	}
	config.Transformers = []huma.Transformer{func(_ huma.Context, _ string, v any) (any, error) {
		if m, ok := v.(*huma.ErrorModel); ok {
			return problemOfHuma(m), nil
		}
		return v, nil
	}}
	for t, as := range schemas {
		config.Components.Schemas.RegisterTypeAlias(t, as)
	}
	return humaecho.NewV4(e, config)
}

// schemaName names the schema of a type in the API's description. A file that users write
// is JobSpec, PipelineSpec or ScheduleSpec in the description, to distinguish it from the
// document of the same name in the API's answers.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[spec.Job](), reflect.TypeFor[spec.Pipeline](), reflect.TypeFor[spec.Schedule]():
		return name + "Spec"
	default:
		return name
	}
}

// schemas are the wire forms of types that read and write their own JSON. Reflection
// would describe such a type by its Go fields, which no client ever sees.
var schemas = map[reflect.Type]reflect.Type{
	reflect.TypeFor[spec.MiB]():         reflect.TypeFor[sizeSchema](),
	reflect.TypeFor[spec.MilliCPU]():    reflect.TypeFor[coresSchema](),
	reflect.TypeFor[spec.MilliGPU]():    reflect.TypeFor[gpusSchema](),
	reflect.TypeFor[spec.Duration]():    reflect.TypeFor[durationSchema](),
	reflect.TypeFor[spec.Priority]():    reflect.TypeFor[prioritySchema](),
	reflect.TypeFor[spec.StringList]():  reflect.TypeFor[stringListSchema](),
	reflect.TypeFor[spec.ExitCodes]():   reflect.TypeFor[exitCodesSchema](),
	reflect.TypeFor[berth.State]():      reflect.TypeFor[stateSchema](),
	reflect.TypeFor[berth.JobID]():      reflect.TypeFor[jobIDSchema](),
	reflect.TypeFor[berth.ScheduleID](): reflect.TypeFor[jobIDSchema](),
	reflect.TypeFor[spec.Instant]():     reflect.TypeFor[time.Time](),
}

type (
	sizeSchema       struct{}
	coresSchema      struct{}
	gpusSchema       struct{}
	durationSchema   struct{}
	prioritySchema   struct{}
	stringListSchema struct{}
	exitCodesSchema  struct{}
	stateSchema      struct{}
	jobIDSchema      struct{}
)

func (sizeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "4GiB, 512MiB or a number of bytes", Examples: []any{"4GiB"},
		OneOf: []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger}}}
}

func (coresSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeNumber, Description: "decimal cores", Minimum: new(0.0), Examples: []any{2.5}}
}

func (gpusSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeNumber, Description: "a whole number of GPUs, or a share of one such as 0.25",
		Minimum: new(0.0), Examples: []any{1}}
}

func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "90s, 15m, 4h", Examples: []any{"90s"}}
}

func (prioritySchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "low, normal, high, or 0 to 1000", Examples: []any{"normal"},
		OneOf: []*huma.Schema{
			{Type: huma.TypeString, Enum: []any{"low", "normal", "high"}},
			{Type: huma.TypeInteger, Minimum: new(0.0), Maximum: new(1000.0)},
		}}
}

func (stringListSchema) Schema(huma.Registry) *huma.Schema {
	text := &huma.Schema{Type: huma.TypeString}
	return &huma.Schema{Description: "one, or a list", OneOf: []*huma.Schema{text, {Type: huma.TypeArray, Items: text}}}
}

func (exitCodesSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "numbers and ranges from 1 to 255",
		Examples: []any{"42,100-110"}}
}

func (stateSchema) Schema(huma.Registry) *huma.Schema {
	all := make([]any, len(berth.States))
	for i, s := range berth.States {
		all[i] = string(s)
	}
	return &huma.Schema{Type: huma.TypeString, Enum: all}
}

func (jobIDSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid"}
}

// retryAfter describes the header of answers that ask the caller to try again later.
var retryAfter = map[string]*huma.Param{"Retry-After": {
	Description: "Seconds after which the same call may succeed (RFC 9110, section 10.2.3)",
	Schema:      &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0)},
}}

// router mounts and describes the operations of the API, and answers their errors.
type router struct {
	echo   *echo.Echo
	huma   huma.API
	agents *echo.Group // prefix of the agents' routes
	log    *slog.Logger
}

func newRouter(version string, log *slog.Logger) *router {
	r := &router{echo: echo.New(), log: log}
	r.echo.HideBanner, r.echo.HidePort = true, true
	r.echo.HTTPErrorHandler = r.renderError
	r.huma, r.agents = newHuma(r.echo, version), r.echo.Group("/agent/v1")
	return r
}

// operation returns the description of an API call, with the errors that every call may
// answer.
func (r *router) operation(id, method, path, tag, summary string) huma.Operation {
	problem := map[string]*huma.MediaType{problemType: {
		Schema: r.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, ""),
	}}
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{tag},
		Security: []map[string][]string{{"token": {}}},
		Responses: map[string]*huma.Response{
			"429": {Description: "A limit is reached: `rate_limited`, or `quota` where the call names one",
				Headers: retryAfter, Content: problem},
			"503": {Description: "The server has no room or no time for the call", Headers: retryAfter,
				Content: problem},
			"default": {Description: "Error", Content: problem},
		},
	}
}

// logPanic logs a panic of a handler with its stack; the caller gets an internal error.
func (r *router) logPanic(c echo.Context, err error, stack []byte) error {
	r.log.Error("request handler panicked", "method", c.Request().Method, "path", c.Path(),
		"err", err, "stack", string(stack))
	return err
}

// Request is the part of an input that is read strictly, by decode: huma's own reader
// knows neither Berth's types nor how to name every fault at once.
type Request struct {
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

// registerWithBody mounts an operation with a body of type T. The framework neither
// validates nor bounds the body, since openCalls.bodies and decode do.
func registerWithBody[T, I, O any](r *router, op huma.Operation, handler handlerFunc[I, O]) *huma.RequestBody {
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
	op.SkipValidateBody, op.MaxBodyBytes, op.BodyReadTimeout = true, maxBody+1, -1 // see openCalls.bodies
	register(r, op, handler)
	schemas := r.huma.OpenAPI().Components.Schemas
	op.RequestBody.Content["application/json"].Schema = schemas.Schema(reflect.TypeFor[T](), true, "")
	return op.RequestBody
}

// registerWithOptionalBody is registerWithBody for a body that may be left out.
func registerWithOptionalBody[T, I, O any](r *router, op huma.Operation, handler handlerFunc[I, O]) {
	registerWithBody[T](r, op, handler).Required = false // huma reads it at each call
}

// document describes a streamed answer, which huma cannot derive from a Go type.
func document(op *huma.Operation, description string, content map[string]*huma.MediaType) {
	op.Responses["200"] = &huma.Response{Description: description, Content: content}
}

// writeJSON writes a JSON answer outside huma's rendering.
func writeJSON(c echo.Context, status int, v any) error {
	c.Response().Header().Set("Content-Type", "application/json")
	c.Response().WriteHeader(status)
	enc := json.NewEncoder(c.Response())
	return enc.Encode(v)
}
