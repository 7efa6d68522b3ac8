package ec2

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"berth/internal/control/cloud"
)

// kinds are the published error codes of EC2 whose kind does not follow from the HTTP status. Other
// codes are Spec with a status of 4xx, and Unknown with 5xx.
var kinds = map[string]cloud.Kind{
	"InvalidInstanceID.NotFound": cloud.NotFound,

	// These have status 500 or 503, but are certain: no instance was created.
	"InsufficientCapacity":                 cloud.Capacity,
	"InsufficientHostCapacity":             cloud.Capacity,
	"InsufficientInstanceCapacity":         cloud.Capacity,
	"InsufficientReservedInstanceCapacity": cloud.Capacity,
	"InsufficientVolumeCapacity":           cloud.Capacity,
	"ReservationCapacityExceeded":          cloud.Capacity,
	"SpotMaxPriceTooLow":                   cloud.Capacity,

	"InstanceLimitExceeded":         cloud.Quota,
	"MaxIOPSLimitExceeded":          cloud.Quota,
	"MaxSpotInstanceCountExceeded":  cloud.Quota,
	"NetworkInterfaceLimitExceeded": cloud.Quota,
	"ResourceCountExceeded":         cloud.Quota,
	"VcpuLimitExceeded":             cloud.Quota,
	"VolumeLimitExceeded":           cloud.Quota,

	"AddressLimitExceeded":              cloud.Network,
	"InsufficientAddressCapacity":       cloud.Network,
	"InsufficientFreeAddressesInSubnet": cloud.Network,
	"PrivateIpAddressLimitExceeded":     cloud.Network,

	"EC2ThrottledException":     cloud.Throttle,
	"RequestLimitExceeded":      cloud.Throttle,
	"RequestThrottled":          cloud.Throttle,
	"RequestThrottledException": cloud.Throttle,
	"SlowDown":                  cloud.Throttle,
	"Throttling":                cloud.Throttle,
	"ThrottlingException":       cloud.Throttle,
	"TooManyRequestsException":  cloud.Throttle,

	"AccessDenied": cloud.Auth,
	"AuthFailure":  cloud.Auth,
	"AuthFailure.ServiceLinkedRoleCreationNotPermitted": cloud.Auth,
	"Blocked":                     cloud.Auth,
	"ExpiredToken":                cloud.Auth,
	"IncompleteSignature":         cloud.Auth,
	"InvalidClientTokenId":        cloud.Auth,
	"MissingAuthenticationToken":  cloud.Auth,
	"OptInRequired":               cloud.Auth,
	"PendingVerification":         cloud.Auth,
	"RequestExpired":              cloud.Auth,
	"SignatureDoesNotMatch":       cloud.Auth,
	"UnauthorizedOperation":       cloud.Auth,
	"UnrecognizedClientException": cloud.Auth,

	"IdempotentInstanceTerminated": cloud.Mismatch,
	"IdempotentParameterMismatch":  cloud.Mismatch,
}

// unsupported is the code for a type that the zone does not offer. It is of kind Spec, since EC2 checks this before it
// looks for an instance with the token: of an earlier send it proves nothing. The type as the scope closes the offering
// alone.
const unsupported = "Unsupported"

// failure turns an error of the SDK into an error of a provider. Only an error document of EC2 is
// certain; a broken connection, a timeout and an answer that cannot be read prove nothing. The scope
// names the offerings that the failure concerns; of kind Spec it is for people, since the cause may be any setting of
// the pool.
func failure(doing string, o cloud.Offering, err error) *cloud.Error {
	e := &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", doing, err)}
	var api smithy.APIError
	var response *smithyhttp.ResponseError
	if !errors.As(err, &api) || !errors.As(err, &response) {
		return e
	}
	// The code decides before the status: some certain refusals have a status of 5xx.
	kind, published := kinds[api.ErrorCode()]
	switch {
	case published:
		e.Kind = kind
	case response.HTTPStatusCode() >= 400 && response.HTTPStatusCode() < 500:
		e.Kind = cloud.Spec
	}
	e.Err = fmt.Errorf("%s: %s: %s", doing, api.ErrorCode(), api.ErrorMessage())
	e.RetryAfter = retryAfter(response.Response)
	switch e.Kind {
	case cloud.Capacity, cloud.Spec:
		e.Scope = o.String()
		if api.ErrorCode() == unsupported {
			e.Scope = o.Type
		}
	case cloud.Quota: // spot instances have codes of their own
		e.Scope = o.Region + "/" + api.ErrorCode() + "/" + family(o.Type)
	case cloud.Network:
		e.Scope = o.Region + "/" + o.Zone
	case cloud.Throttle:
		e.Scope = o.Region
	case cloud.Auth:
		e.Scope = o.Region
		difference := clockDifference(response.Response, time.Now())
		e.Err = fmt.Errorf("%w%s", e.Err, difference)
		if difference != "" && slices.Contains(ofClock, api.ErrorCode()) {
			e.Kind, e.Unsent = cloud.Throttle, true
		}
	}
	return e
}

// ofClock are the codes of Auth by which EC2 refuses the signatures of a host whose clock is wrong. Such a call had no
// effect, and says nothing about the credentials of other hosts: it counts as one that the host could not make.
var ofClock = []string{"AuthFailure", "RequestExpired", "SignatureDoesNotMatch"}

// family returns the letters with which the name of an instance type starts: p for p5.48xlarge. EC2 names no family in
// an error, and has quotas of vCPUs for families. So a family whose quota has no room keeps no other one from being
// tried. Families that share a quota, such as m and c, are refused once each.
func family(kind string) string {
	end := strings.IndexFunc(kind, func(r rune) bool { return !unicode.IsLetter(r) })
	if end < 0 {
		return kind
	}
	return kind[:end]
}

// mostSkew is the difference of clocks from which a refusal names it. EC2 refuses a signature from 15 minutes on, and
// Amazon's other services from 5 minutes on.
const mostSkew = 4 * time.Minute

// clockDifference returns the difference between the clock of this host and EC2's as the end of an error text, or "" if
// it is small. EC2 refuses the signatures of a host whose clock is wrong. The SDK corrects its own clock after a
// refusal, but each call of berthd is a new process of berth-cloud.
func clockDifference(r *smithyhttp.Response, now time.Time) string {
	if r == nil || r.Response == nil {
		return ""
	}
	date, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		return ""
	}
	switch ahead := now.Sub(date).Round(time.Minute); {
	case ahead > mostSkew:
		return fmt.Sprintf(" (the clock of this host is %s ahead of EC2's: synchronize it)", ahead)
	case ahead < -mostSkew:
		return fmt.Sprintf(" (the clock of this host is %s behind EC2's: synchronize it)", -ahead)
	}
	return ""
}

// retryAfter returns the wait of the header Retry-After in seconds, or 0. It is bounded by an hour,
// since a wrong header must not stop launches for longer. A date in place of seconds counts as 0.
func retryAfter(r *smithyhttp.Response) time.Duration {
	if r == nil || r.Response == nil {
		return 0
	}
	seconds, err := strconv.Atoi(http.Header(r.Header).Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, time.Hour)
}

// spec returns an error for a request that was not sent. It is certain that the call had no effect. Settings without an
// image for the region concern the region alone.
func spec(doing string, o cloud.Offering, err error) *cloud.Error {
	e := &cloud.Error{Kind: cloud.Spec, Scope: o.String(), Err: fmt.Errorf("%s: %w", doing, err)}
	if errors.Is(err, errNoImage) {
		e.Scope = o.Region
	}
	return e
}
