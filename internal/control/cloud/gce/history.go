package gce

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/proto"

	"berth/internal/control/cloud"
)

// GCE shows no deleted instance: a read of its name fails like a read of a name that never existed, or
// that GCE does not show yet. The operations of the zone remain for days. They name an instance by its
// number, which GCE never gives out again. Together they prove the end of a launch's instance:
//
//	the insert with the launch's request id    another operation on its number         instance
//	-----------------------------------------  --------------------------------------  ----------
//	is not listed                              -                                       unknown
//	has not ended                              -                                       unknown
//	has ended with an error                    -                                       Terminated
//	has ended without an error                 none of a type in ending                unknown
//	has ended without an error                 one of these, done without an error     Terminated
//
// The table applies only after a read of the name that found nothing. A list of operations that lacks
// some of them proves less, and never more.

// history returns the operations on an instance in a zone whose links name it by its name or by its
// number. Requests may use both, and GCE does not document which one the link of their operation has.
func (s *session) history(ctx context.Context, zone, name string) ([]*computepb.Operation, *cloud.Error) {
	all := s.operations.List(ctx, &computepb.ListZoneOperationsRequest{
		Project: s.p.o.Project, Zone: zone, MaxResults: proto.Uint32(500),
		// A regular expression, as the host in the links of GCE has changed before.
		Filter: proto.String(fmt.Sprintf(`targetLink eq ".*/zones/%s/instances/%s"`, zone, name)),
	})
	var list []*computepb.Operation
	for {
		op, err := all.Next()
		if err == iterator.Done { //nolint:errorlint // the iterator's own sentinel, never wrapped
			return list, nil
		}
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		// The filter is a request. Only an operation on this very name counts.
		if strings.HasSuffix(op.GetTargetLink(), "/zones/"+zone+"/instances/"+name) {
			list = append(list, op)
		}
	}
}

// typeInsert is the type of operations that create an instance.
const typeInsert = "insert"

// gone returns the instance of a launch as Terminated, if the table above proves that. The caller has
// seen that GCE does not show the name.
func (s *session) gone(ctx context.Context, l cloud.Launch) (cloud.Instance, bool, *cloud.Error) {
	id, err := requestID(l.Token)
	if err != nil {
		return cloud.Instance{}, false, badRequest(s.doing, l.Offering, err)
	}
	all, failed := s.history(ctx, l.Offering.Zone, nameOf(l))
	if failed != nil {
		return cloud.Instance{}, false, failed
	}
	inserts := []*computepb.Operation{}
	for _, op := range all {
		if op.GetOperationType() == typeInsert && op.GetClientOperationId() == id {
			inserts = append(inserts, op)
		}
	}
	for _, op := range inserts {
		more, failed := s.history(ctx, l.Offering.Zone, strconv.FormatUint(op.GetTargetId(), 10))
		if failed != nil {
			return cloud.Instance{}, false, failed
		}
		all = append(all, more...)
	}
	var last *computepb.Operation
	reason := ""
	for _, op := range inserts {
		why, gone := endOfInsert(all, op)
		if !gone { // of several, each must have ended
			return cloud.Instance{}, false, nil
		}
		if last == nil || instant(op.GetInsertTime()).After(instant(last.GetInsertTime())) {
			last, reason = op, why
		}
	}
	if last == nil {
		return cloud.Instance{}, false, nil
	}
	at := place{zone: l.Offering.Zone, name: nameOf(l), number: last.GetTargetId()}
	return cloud.Instance{
		ID: at.String(), Token: l.Token, Cluster: l.Cluster, Pool: l.Pool, Machine: l.Machine, N: l.N,
		State: cloud.Terminated, Offering: l.Offering, Created: instant(last.GetInsertTime()), Reason: reason,
	}, true, nil
}

// endOfInsert returns the reason for which the instance of an insert is gone.
func endOfInsert(all []*computepb.Operation, op *computepb.Operation) (reason string, gone bool) {
	if op.GetStatus() != computepb.Operation_DONE {
		return "", false
	}
	if faults := op.GetError().GetErrors(); len(faults) > 0 {
		return faults[0].GetCode(), true
	}
	if failedStatus(op) {
		return op.GetHttpErrorMessage(), true
	}
	return end(all, op.GetTargetId())
}

const (
	typeDelete    = "delete"
	typePreempted = "compute.instances.preempted"
)

// ending are the types of operations that prove the end of an instance whose name is not shown any
// longer. A preempted instance with the termination action DELETE ends without a delete of its own. No
// other type proves anything, also none that a later version of GCE adds: guestTerminate, hostError and
// terminateOnHostMaintenance leave a stopped instance, whose disk costs money.
var ending = map[string]bool{typeDelete: true, typePreempted: true}

// end returns the type of an operation that ended the instance with the number.
func end(all []*computepb.Operation, number uint64) (reason string, gone bool) {
	for _, op := range all {
		kind := op.GetOperationType()
		if !ending[kind] || op.GetTargetId() != number || number == 0 ||
			op.GetStatus() != computepb.Operation_DONE || len(op.GetError().GetErrors()) > 0 || failedStatus(op) {
			continue
		}
		// The cloud's own reason says more than the delete that may follow it.
		if reason = kind; kind != typeDelete {
			return reason, true
		}
		gone = true
	}
	return reason, gone
}

// failedStatus reports whether an operation has the HTTP status of a failure.
func failedStatus(op *computepb.Operation) bool {
	return op.HttpErrorStatusCode != nil && (op.GetHttpErrorStatusCode() < 200 || op.GetHttpErrorStatusCode() > 299)
}
