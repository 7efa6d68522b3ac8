package gce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"berth/internal/control/cloud"
)

// kinds are the reasons and codes of GCE whose kind does not follow from the HTTP status. A call
// answers with reasons such as quotaExceeded, an operation with codes such as QUOTA_EXCEEDED: both are
// compared by normal.
var kinds = map[string]cloud.Kind{
	"RESOURCEPOOLEXHAUSTED":                cloud.Capacity,
	"STOCKOUT":                             cloud.Capacity,
	"ZONERESOURCEPOOLEXHAUSTED":            cloud.Capacity,
	"ZONERESOURCEPOOLEXHAUSTEDWITHDETAILS": cloud.Capacity,

	"LIMITEXCEEDED":         cloud.Quota,
	"QUOTAEXCEEDED":         cloud.Quota,
	"QUOTALIMITEXCEEDED":    cloud.Quota,
	"RESOURCEQUOTAEXCEEDED": cloud.Quota,
	"RESOURCEUSAGELIMIT":    cloud.Quota,
	"REGIONQUOTAEXCEEDED":   cloud.Quota,

	"IPINUSEBYANOTHERRESOURCE":    cloud.Network,
	"IPSPACEEXHAUSTED":            cloud.Network,
	"IPSPACEEXHAUSTEDWITHDETAILS": cloud.Network,
	"EXTERNALIPEXHAUSTED":         cloud.Network,

	"CONCURRENTLIMITEXCEEDED":       cloud.Throttle,
	"OPERATIONRATEEXCEEDED":         cloud.Throttle,
	"RATELIMITEXCEEDED":             cloud.Throttle,
	"RESOURCENOTREADY":              cloud.Throttle,
	"RESOURCEOPERATIONRATEEXCEEDED": cloud.Throttle,
	"USERRATELIMITEXCEEDED":         cloud.Throttle,

	"ACCESSNOTCONFIGURED": cloud.Auth,
	"ACCOUNTDISABLED":     cloud.Auth,
	"AUTHERROR":           cloud.Auth,
	"BILLINGDISABLED":     cloud.Auth,
	"FORBIDDEN":           cloud.Auth,
	"PERMISSIONDENIED":    cloud.Auth,
	"PERMISSIONSERROR":    cloud.Auth,
	"SERVICEDISABLED":     cloud.Auth,

	// An operation reports the name that is in use.
	"RESOURCEALREADYEXISTS": cloud.Mismatch,
	"ALREADYEXISTS":         cloud.Mismatch,
}

// normal returns a reason or code in one spelling: QUOTAEXCEEDED.
func normal(code string) string { return strings.ToUpper(strings.ReplaceAll(code, "_", "")) }

// reasonOf returns the normal reason of an error of a call, or "".
func reasonOf(err error) string {
	var answer *googleapi.Error
	if !errors.As(err, &answer) || len(answer.Errors) == 0 {
		return ""
	}
	return normal(answer.Errors[0].Reason)
}

// failure turns an error of the SDK into an error of a provider. Only an error document of GCE is
// certain; a broken connection, a timeout and an answer that cannot be read prove nothing.
func (s *session) failure(ctx context.Context, err error) *cloud.Error {
	e := &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", s.doing, err)}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		e.Err = fmt.Errorf("%w (%w)", e.Err, cause)
	}
	var answer *googleapi.Error
	if !errors.As(err, &answer) || len(answer.Errors) == 0 && answer.Message == "" {
		return e // a proxy's page has no error document
	}
	reason, message := "", answer.Message
	if len(answer.Errors) > 0 {
		reason = answer.Errors[0].Reason
	}
	kind, known := kinds[normal(reason)]
	switch status := answer.Code; {
	case known:
		e.Kind = kind
	case status == http.StatusTooManyRequests:
		e.Kind = cloud.Throttle
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.Kind = cloud.Auth
	case status == http.StatusNotFound:
		e.Kind = cloud.NotFound
	case status == http.StatusRequestTimeout: // it may have had its effect
	case status >= 400 && status < 500:
		e.Kind = cloud.Spec
	}
	e.Err = fmt.Errorf("%s: %d %s: %s", s.doing, answer.Code, reason, message)
	e.RetryAfter = retryAfter(answer.Header)
	e.Scope = s.scope(e.Kind, message, nil)
	return e
}

// refusal returns the error of an operation that has ended with one, or nil. A code that is not known is
// Spec only with a status of 4xx.
func (s *session) refusal(op *computepb.Operation) *cloud.Error {
	faults := op.GetError().GetErrors()
	if len(faults) == 0 && !failedStatus(op) {
		return nil
	}
	e := &cloud.Error{Kind: cloud.Unknown}
	texts := []string{}
	var details []*computepb.ErrorDetails
	message := op.GetHttpErrorMessage()
	for _, f := range faults {
		texts = append(texts, f.GetCode()+": "+f.GetMessage())
	}
	known := slices.IndexFunc(faults, func(f *computepb.Errors) bool { return kinds[normal(f.GetCode())] != "" })
	if known >= 0 {
		e.Kind = kinds[normal(faults[known].GetCode())]
		message, details = faults[known].GetMessage(), faults[known].GetErrorDetails()
	} else if status := op.GetHttpErrorStatusCode(); status >= 400 && status < 500 {
		e.Kind = cloud.Spec
	}
	switch {
	case len(texts) == 0:
		texts = append(texts, message)
	case known < 0:
		message = strings.Join(texts, "; ")
	}
	e.Err = fmt.Errorf("%s: operation %s: %d %s", s.doing, op.GetName(), op.GetHttpErrorStatusCode(),
		strings.Join(texts, "; "))
	e.Scope = s.scope(e.Kind, message, details)
	return e
}

// quotas finds the quota and its region in a message, for example: Quota 'NVIDIA_T4_GPUS' exceeded.
// Limit: 1.0 in region us-west1. A quota without a region is one of the project: Limit: 0.0 globally.
var quotas = regexp.MustCompile(
	`[Qq]uota '([^']+)' exceeded\.?\s*(?:Limit: [0-9.]+ (?:in region ([a-z0-9-]+)|(globally)))?`)

// scope returns the part of the cloud to which an error of the kind applies. A type that the zone does not have is a
// wrong line in the file of offers: the type as the scope closes the offering alone.
func (s *session) scope(kind cloud.Kind, message string, details []*computepb.ErrorDetails) string {
	o := s.offering
	switch kind {
	case cloud.Capacity:
		return o.String()
	case cloud.Spec:
		if strings.Contains(message+"'", "/machineTypes/"+o.Type+"'") {
			return o.Type
		}
		return o.String()
	case cloud.Network:
		return o.Region + "/" + o.Zone
	case cloud.Throttle, cloud.Auth:
		return s.p.o.Project
	case cloud.Quota:
		if m := quotas.FindStringSubmatch(message); m != nil {
			where := m[2]
			switch {
			case m[3] != "":
				where = "global"
			case where == "":
				where = o.Region
			}
			return where + "/" + m[1]
		}
		for _, d := range details {
			if q := d.GetQuotaInfo(); q.GetLimitName() != "" {
				where := "global"
				if region := q.GetDimensions()["region"]; region != "" {
					where = region
				}
				return where + "/" + q.GetLimitName()
			}
		}
		return o.Region
	}
	return ""
}

// retryAfter returns the wait of the header Retry-After in seconds, or 0.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, time.Hour)
}

// badRequest returns an error for a request that was not sent.
func badRequest(doing string, o cloud.Offering, err error) *cloud.Error {
	return &cloud.Error{Kind: cloud.Spec, Scope: o.String(), Err: fmt.Errorf("%s: %w", doing, err)}
}

// unknown returns an error about a call that may have had its effect.
func unknown(e *cloud.Error) *cloud.Error {
	return &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("the outcome is unknown: %w", e)}
}

// whole returns an error if a page of a list may lack instances of the regions. The warning
// NO_RESULTS_ON_PAGE is GCE's word for a zone without instances.
func whole(page *computepb.InstanceAggregatedList, regions []string) error {
	for _, place := range page.GetUnreachables() {
		if region := regionOf(place); region == "" || contains(regions, region) {
			return fmt.Errorf("the list is partial: GCE could not reach %s", place)
		}
	}
	if code := page.GetWarning().GetCode(); code != "" && code != noResults {
		return fmt.Errorf("the list may be partial: %s: %s", code, page.GetWarning().GetMessage())
	}
	for place, scope := range page.GetItems() {
		code := scope.GetWarning().GetCode()
		if code != "" && code != noResults && contains(regions, regionOf(place)) {
			return fmt.Errorf("the list of %s may be partial: %s: %s", place, code, scope.GetWarning().GetMessage())
		}
	}
	return nil
}

const noResults = "NO_RESULTS_ON_PAGE"

func contains(list []string, one string) bool { return slices.Contains(list, one) }
