package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"berth/workers"
)

// leastTemporal is the oldest version of Temporal's server that Berth supports. Major and minor number.
var leastTemporal = [2]int{1, 29}

// temporal examines Temporal: whether it answers, its version, the namespace and its search attributes.
// berthd starts without Temporal, and jobs wait then, so a wrong address shows here and not as a failed
// start.
func (r *report) temporal(ctx context.Context) {
	address := r.Config.TemporalAddress
	namespace := cmp.Or(r.Config.TemporalNamespace, workers.DefaultNamespace)
	c, err := workers.Dial(workers.ClientOptions{Base: r.Temporal, Address: address, Namespace: namespace})
	if err != nil {
		r.add("temporal", Fault, "", "Temporal at %s: %v", address, err)
		return
	}
	defer c.Close()
	call, cancel := context.WithTimeout(ctx, r.TemporalLimit)
	defer cancel()
	// The cheapest call that returns the version; it needs no namespace.
	info, err := c.WorkflowService().GetSystemInfo(call, &workflowservice.GetSystemInfoRequest{})
	if err != nil {
		r.add("temporal", Fault, "compare temporal-address and the variables TEMPORAL_TLS_...; jobs wait until it "+
			"answers", "Temporal at %s: %v", address, err)
		return
	}
	if older(info.GetServerVersion()) {
		r.add("temporal", Fault, fmt.Sprintf("upgrade it to %d.%d or newer", leastTemporal[0], leastTemporal[1]),
			"Temporal at %s has version %s", address, info.GetServerVersion())
	} else {
		r.add("temporal", OK, "", "Temporal %s at %s answers", info.GetServerVersion(), address)
	}
	r.namespace(call, c, namespace)
}

// older reports whether a version of the server is too old. A version that has another form is a build
// of one's own, and passes. Only major and minor count.
func older(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d.", &major, &minor); err != nil {
		return false
	}
	return major < leastTemporal[0] || major == leastTemporal[0] && minor < leastTemporal[1]
}

// namespace examines the namespace of the workflows. Missing search attributes are advice, since berthd
// adds them at its start if it may.
func (r *report) namespace(ctx context.Context, c client.Client, name string) {
	const create = "berthd namespace create"
	d, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	if _, unknown := errors.AsType[*serviceerror.NamespaceNotFound](err); unknown {
		r.add("temporal", Fault, create, "the namespace %s does not exist", name)
		return
	}
	if err != nil {
		r.add("temporal", Fault, "", "the namespace %s: %v", name, err)
		return
	}
	if state := d.GetNamespaceInfo().GetState(); state != enumspb.NAMESPACE_STATE_REGISTERED {
		r.add("temporal", Fault, "name another namespace in temporal-namespace", "the namespace %s is %s", name, state)
		return
	}
	missing, err := workers.MissingSearchAttributes(ctx, c, name)
	switch {
	case err != nil:
		r.add("temporal", Fault, "", "the search attributes of namespace %s: %v", name, err)
	case len(missing) > 0:
		r.add("temporal", Advice, create+" adds them; berthd adds them at its start if it may",
			"the namespace %s has no search attributes %s", name, strings.Join(missing, ", "))
	default:
		r.add("temporal", OK, "", "the namespace %s has the search attributes, and keeps ended workflows for %s", name,
			d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration())
	}
}
