package fetch

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"berth"
	"berth/spec"
)

const kindAzure = "azblob-"

// azureStore is a container of Azure Blob Storage.
type azureStore struct {
	client *container.Client
	of     spec.AzureBlobs
}

// openAzure sets up b to read from a container of blobs.
func (s *Sources) openAzure(b *bucket, in spec.Input, login spec.Sensitive) error {
	of, err := spec.ParseAzure(in.From)
	if err != nil {
		return refusedf("%v", err)
	}
	at := "https://" + of.Account + ".blob.core.windows.net"
	if in.Endpoint != "" {
		at = strings.TrimRight(in.Endpoint, "/")
	}
	at += "/" + of.Container
	client, err := azureClient(at, of.Account, in.Secret, login,
		&container.ClientOptions{ClientOptions: azcore.ClientOptions{
			Transport: bounded{s.objects}, Retry: policy.RetryOptions{MaxRetries: -1},
			Telemetry: policy.TelemetryOptions{Disabled: true},
		}})
	if err != nil {
		return err
	}
	b.store, b.origin, b.prefix = &azureStore{client, of},
		fmt.Sprintf("azblob %q %q %q", in.Endpoint, of.Account, of.Container), of.Key
	return nil
}

// azureClient reads a secret: a SAS token, or a key of the account. Without one, only
// public blobs can be read: the machine's own rights are never used.
func azureClient(at, account, secret string, login spec.Sensitive,
	o *container.ClientOptions) (*container.Client, error) {
	text := strings.TrimSpace(string(login))
	unread := refusedf("secret %s is neither a SAS token (sv=…&sig=…) nor an account key", secret)
	if secret == "" {
		client, err := container.NewClientWithNoCredential(at, o)
		return client, unfit(at, err)
	}
	if token, err := url.ParseQuery(strings.TrimPrefix(text, "?")); err == nil && token.Get("sig") != "" &&
		!strings.Contains(text, "://") {
		client, err := container.NewClientWithNoCredential(at+"?"+token.Encode(), o)
		return client, unfit(at, err)
	}
	if key, err := base64.StdEncoding.DecodeString(text); err != nil || len(key) < 16 {
		return nil, unread
	}
	key, err := container.NewSharedKeyCredential(account, text)
	if err != nil {
		return nil, unread
	}
	client, err := container.NewClientWithSharedKeyCredential(at, key, o)
	return client, unfit(at, err)
}

// unfit turns an error of the library about an address into a refusal of the input.
func unfit(at string, err error) error {
	if err != nil {
		return refusedf("%s is not the address of a blob server", at)
	}
	return nil
}

// bounded refuses answers beyond a length, if they are kept in memory: all answers
// except the content of blobs and of objects.
type bounded struct{ client *http.Client }

// Do sends a request. The query distinguishes answers kept in memory from content: lists and
// errors are bounded, content has its own limits.
func (b bounded) Do(r *http.Request) (*http.Response, error) {
	answer, err := b.client.Do(r)
	asked := r.URL.Query()
	if err == nil && (asked.Get("comp") != "" || asked.Get("list-type") != "" || answer.StatusCode >= 300) {
		answer.Body = &brief{answer.Body, told}
	}
	return answer, err
}

// one requests a blob's properties.
func (a *azureStore) one(ctx context.Context, key string) (object, error) {
	p, err := a.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return object{}, a.fault(key, err)
	}
	o := object{folder: isFolder(p.Metadata)}
	o.isAzure(p.ContentLength, p.ETag, p.LastModified)
	return o, nil
}

// all pages through the list. watch limits each page on its own, since a long list takes longer
// than any one answer may.
func (a *azureStore) all(ctx context.Context, prefix string, each func(object) error) error {
	pages := a.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Prefix: &prefix, Include: container.ListBlobsInclude{Metadata: true}, MaxResults: new(int32(pageSize)),
	})
	for none := empty(0); pages.More(); {
		limited, _, end := watch(ctx)
		page, err := pages.NextPage(limited)
		end()
		if err != nil {
			return a.fault(prefix, err)
		}
		var blobs []*container.BlobItem
		if page.Segment != nil {
			blobs = page.Segment.BlobItems
		}
		if err := none.page(a.url(prefix), len(blobs)); err != nil {
			return err
		}
		for _, b := range blobs {
			if b == nil || b.Name == nil || b.Properties == nil {
				return berth.Errorf(berth.CodeUnavailable, "%s: the answer cannot be read", a.url(prefix))
			}
			o := object{key: *b.Name, folder: isFolder(b.Metadata)}
			o.isAzure(b.Properties.ContentLength, b.Properties.ETag, b.Properties.LastModified)
			if err := each(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// isFolder reports whether a blob stands for a folder: accounts with a hierarchy
// of names list their folders, and tools that mount others make such.
func isFolder(metadata map[string]*string) bool {
	for name, value := range metadata {
		if strings.EqualFold(name, "hdi_isfolder") {
			return value != nil && *value == "true"
		}
	}
	return false
}

// isAzure stores the server's properties of a blob. Lists contain its ETag without
// quotes.
func (o *object) isAzure(size *int64, etag *azcore.ETag, at *time.Time) {
	o.size = -1
	if size != nil {
		o.size = *size
	}
	if etag != nil {
		o.pin = strings.Trim(string(*etag), `"`)
	}
	o.version = o.pin
	if o.version == "" && at != nil {
		o.version = at.UTC().Format(time.RFC3339Nano)
	}
}

// open requests a blob with the listed ETag as a condition. A blob without an ETag is compared by
// its time and size after the answer.
func (a *azureStore) open(ctx context.Context, o object, from int64) (io.ReadCloser, error) {
	want := &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: from}}
	if o.pin != "" {
		quoted := azcore.ETag(`"` + o.pin + `"`)
		want.AccessConditions = &blob.AccessConditions{
			ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &quoted},
		}
	}
	// A blob that is gone has changed since the list: the next look reports its absence.
	got, err := a.client.NewBlobClient(o.key).DownloadStream(ctx, want)
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok && r.StatusCode == http.StatusNotFound {
		return nil, Changed{a.url(o.key)}
	}
	if err != nil {
		return nil, a.fault(o.key, err)
	}
	now := object{}
	now.isAzure(got.ContentLength, got.ETag, got.LastModified)
	if now.version != o.version || now.size >= 0 && now.size != o.size-from {
		_ = got.Body.Close()
		return nil, Changed{a.url(o.key)}
	}
	return got.Body, nil
}

// fault returns an error of the server, or of the connection, with the blob's address.
func (a *azureStore) fault(key string, err error) error {
	what := a.url(key)
	if r, ok := errors.AsType[*azcore.ResponseError](err); ok {
		if r.StatusCode == http.StatusForbidden && r.ErrorCode == "AuthenticationFailed" && r.RawResponse != nil &&
			skewed(r.RawResponse.Header) {
			return errSkewed(what)
		}
		return answer(what, r.StatusCode, fmt.Sprintf("%.64s", r.ErrorCode))
	}
	if _, sent := errors.AsType[*url.Error](err); sent {
		return fault(what, err)
	}
	// The library's text may repeat the server's answer.
	return berth.Errorf(berth.CodeUnavailable, "%s: the answer cannot be read, or broke off", what)
}

// url returns the address of a blob in the form that jobs use.
func (a *azureStore) url(key string) string {
	return "azblob://" + a.of.Account + "/" + a.of.Container + "/" + key
}
