package workers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/wire"
)

// attributes are the search attributes of workflows, with their types.
var attributes = map[string]enumspb.IndexedValueType{
	berth.AttributeTenant: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	berth.AttributeKind:   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	wire.AttributeJobName: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	wire.AttributeUser:    enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	wire.AttributeOutcome: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
}

// SearchAttributes returns the names of the search attributes, in order.
func SearchAttributes() []string { return slices.Sorted(maps.Keys(attributes)) }

// AddSearchAttributes adds the search attributes of Berth's workflows to the namespace,
// unless all exist. It needs the rights of an operator; without these, an operator must
// have added the attributes before.
//
// The check comes first because a server that keeps visibility in SQL opens a connection to
// itself for each such request and never closes it (server 1.32).
func AddSearchAttributes(ctx context.Context, c client.Client, namespace string) error {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	if missing, err := MissingSearchAttributes(ctx, c, namespace); err == nil && len(missing) == 0 {
		return nil
	}
	_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace:        namespace,
		SearchAttributes: attributes,
	})
	if err != nil {
		return fmt.Errorf("add search attributes to namespace %s: %w", namespace, err)
	}
	return nil
}

// MissingSearchAttributes returns Berth's search attributes for which the namespace has no alias, in
// order. Aliases exist where visibility is kept in SQL.
func MissingSearchAttributes(ctx context.Context, c client.Client, namespace string) ([]string, error) {
	d, err := c.WorkflowService().DescribeNamespace(ctx,
		&workflowservice.DescribeNamespaceRequest{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	known := slices.Collect(maps.Values(d.GetConfig().GetCustomSearchAttributeAliases()))
	return slices.DeleteFunc(SearchAttributes(), func(name string) bool { return slices.Contains(known, name) }), nil
}
