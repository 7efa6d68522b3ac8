package cluster

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
)

// Bounds of one evaluation, in CEL's units (about one a step, some 0.1 µs). Constraints come from users and
// run in the leader, once for each kind of machine, in a cluster of many labels once for each machine.
const (
	constraintCost = 10_000 // of any constraint: beyond it, an evaluation ends without a match
	// constraintLimit bounds the cost of a new constraint by CEL's estimate. A loop over the labels within
	// another one costs more.
	constraintLimit = 5_000
	manyLabels      = 64 // of a machine
	longText        = 64 // bytes of a name, a label or its value
)

// CELMachine is the variable machine of a constraint.
type CELMachine struct {
	ID        string            `cel:"id"`
	Region    string            `cel:"region"`
	Site      string            `cel:"site"`
	Pool      string            `cel:"pool"`
	Labels    map[string]string `cel:"labels"`
	CPUs      float64           `cel:"cpus"`
	MemoryMiB int64             `cel:"memory_mib"`
}

// CELGPU is the variable gpu of a constraint: one device of the machine.
type CELGPU struct {
	Model     string `cel:"model"`
	MemoryMiB int64  `cel:"memory_mib"`
	Index     int64  `cel:"index"`
}

// constraint is a compiled CEL expression and the set of machine attributes in it. Machines
// with equal attributes of this set are of one kind.
type constraint struct {
	program cel.Program
	usesGPU bool // it reads the variable gpu, so it is evaluated for each device
	reads   Profile
}

// constraintEnv returns the CEL environment. All constraints share it; nothing writes to
// it after its creation.
var constraintEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(ext.ParseStructTags(true), reflect.TypeFor[CELMachine](), reflect.TypeFor[CELGPU]()),
		cel.Variable("machine", cel.ObjectType(celMachineType)),
		cel.Variable("gpu", cel.ObjectType(celGPUType)),
		cel.CrossTypeNumericComparisons(true),
	)
})

// The names of the types in CEL: Go's package and type name.
var (
	celMachineType = reflect.TypeFor[CELMachine]().String()
	celGPUType     = reflect.TypeFor[CELGPU]().String()
)

// typeNames replaces type names in CEL's messages by variable names, which users know.
var typeNames = strings.NewReplacer(celMachineType, "machine", celGPUType, "gpu")

// CompileConstraint checks the syntax and the types of a placement constraint. The error names the column and
// the mistake, for the author of the constraint.
func CompileConstraint(expr string) error {
	_, err := compileConstraint(expr)
	return err
}

// CheckConstraint is CompileConstraint for a new constraint, and refuses one that may take too long. The estimate
// takes machines with 64 labels and texts of 64 bytes; longer literals in the constraint itself are not counted.
func CheckConstraint(expr string) error {
	if err := CompileConstraint(expr); err != nil {
		return err
	}
	env, checked, err := checkConstraint(expr)
	if err != nil {
		return err
	}
	cost, err := env.EstimateCost(checked, sizes{})
	if err != nil {
		return fmt.Errorf("the constraint's cost cannot be estimated: %w", err)
	}
	if cost.Max > constraintLimit {
		return fmt.Errorf("the constraint takes up to %d steps on a machine with %d labels, at most %d are allowed: "+
			"use fewer loops (all, exists, filter) and regular expressions (matches)", min(cost.Max, mostSteps),
			manyLabels, constraintLimit)
	}
	return nil
}

// mostSteps is the greatest estimate that an error names: nested loops have absurd ones.
const mostSteps = 1_000_000

// sizes estimates the sizes of a machine's attributes.
type sizes struct{}

// EstimateSize implements checker.CostEstimator.
func (sizes) EstimateSize(n checker.AstNode) *checker.SizeEstimate {
	if path := n.Path(); len(path) == 2 && path[1] == "labels" {
		return &checker.SizeEstimate{Max: manyLabels}
	}
	return &checker.SizeEstimate{Max: longText}
}

// EstimateCallCost implements checker.CostEstimator: CEL's own estimates are good enough.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// compileConstraint compiles a constraint and records the attributes that it reads. Each
// later evaluation is bounded by constraintCost.
func compileConstraint(expr string) (*constraint, error) {
	env, checked, err := checkConstraint(expr)
	if err != nil {
		return nil, err
	}
	program, err := env.Program(checked, cel.CostLimit(constraintCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("the constraint cannot be run: %w", err)
	}
	c := &constraint{program: program}
	c.read(ast.NavigateAST(checked.NativeRep()))
	return c, nil
}

// checkConstraint parses a constraint and checks its types.
func checkConstraint(expr string) (*cel.Env, *cel.Ast, error) {
	env, err := constraintEnv()
	if err != nil {
		return nil, nil, fmt.Errorf("make the CEL environment: %w", err)
	}
	checked, issues := env.Compile(expr)
	if issues.Err() != nil {
		return nil, nil, constraintError(issues)
	}
	if checked.OutputType() != cel.BoolType {
		return nil, nil, fmt.Errorf("the constraint is of type %s: write a condition, such as "+
			"machine.labels.tier == \"prod\"", typeNames.Replace(checked.OutputType().String()))
	}
	return env, checked, nil
}

// constraintError rewrites CEL's messages without CEL's types, which users do not know.
func constraintError(issues *cel.Issues) error {
	var texts []string
	for _, e := range issues.Errors() {
		text := e.Message
		if field, ok := strings.CutPrefix(text, "undefined field '"); ok {
			text = "there is no field '" + field +
				": machine has id, region, site, pool, labels, cpus, memory_mib; gpu has model, memory_mib, index"
		}
		if _, ok := strings.CutPrefix(text, "undeclared reference to '"); ok {
			text += ": the variables are machine and gpu"
		}
		if strings.Contains(text, "'<EOF>'") {
			text = "the expression ends too early"
		}
		text, _, _ = strings.Cut(text, " expecting {")
		texts = append(texts, fmt.Sprintf("column %d: %s", max(1, e.Location.Column()+1), typeNames.Replace(text)))
	}
	return errors.New(strings.Join(texts, "; "))
}

// read records the attributes that the expression reads. Any use of a variable other than
// a plain access to a field counts as reading all attributes: an attribute missed here
// would put machines into one kind although the constraint distinguishes them.
func (c *constraint) read(e ast.NavigableExpr) {
	for _, id := range ast.MatchDescendants(e, ast.KindMatcher(ast.IdentKind)) {
		parent, ok := id.Parent()
		field := ""
		if ok && parent.Kind() == ast.SelectKind {
			field = parent.AsSelect().FieldName()
		}
		switch id.AsIdent() {
		case "gpu":
			c.usesGPU = true
			c.reads.index = c.reads.index || field == "index" || field == ""
		case "machine":
			c.readMachine(field, parent)
		}
	}
}

// readMachine records the access to a field of machine; "" is the whole variable.
func (c *constraint) readMachine(field string, access ast.NavigableExpr) {
	switch field {
	case "id":
		c.reads.ID = true
	case "cpus":
		c.reads.cpus = true
	case "memory_mib":
		c.reads.memory = true
	case "labels":
		c.readLabel(access)
	case "region", "site", "pool": // part of every kind
	default:
		c.reads.ID, c.reads.cpus, c.reads.memory, c.reads.allLabels = true, true, true, true
	}
}

// readLabel records the label of labels.key, labels["key"] and "key" in labels. Any other
// use counts as reading all labels.
func (c *constraint) readLabel(labels ast.NavigableExpr) {
	use, ok := labels.Parent()
	switch {
	case ok && use.Kind() == ast.SelectKind:
		c.reads.addLabel(use.AsSelect().FieldName())
		return
	case ok && use.Kind() == ast.CallKind && len(use.AsCall().Args()) == 2:
		call := use.AsCall()
		key := call.Args()[1]
		if call.FunctionName() == "@in" {
			key = call.Args()[0]
		}
		if key.Kind() == ast.LiteralKind && (call.FunctionName() == "_[_]" || call.FunctionName() == "@in") {
			if s, ok := key.AsLiteral().Value().(string); ok {
				c.reads.addLabel(s)
				return
			}
		}
	}
	c.reads.allLabels = true
}

// holds evaluates the constraint. An error, such as access to a label that the machine
// does not have, counts as false.
func (c *constraint) holds(m *CELMachine, g *CELGPU) bool {
	vars := map[string]any{"machine": m}
	if g != nil {
		vars["gpu"] = g
	}
	out, _, err := c.program.Eval(vars)
	if err != nil {
		return false
	}
	yes, ok := out.Value().(bool)
	return ok && yes
}
