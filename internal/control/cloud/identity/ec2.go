package identity

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"berth/internal/control/cloud"
	"berth/wire"
)

// EC2 verifies identity documents of Amazon EC2 by the signature that the metadata service serves as
// instance-identity/signature: RSA PKCS #1 v1.5 with SHA-256 over the bytes of the document (AWS, "Verify the
// instance identity document").
type EC2 struct {
	account string
	all     []*x509.Certificate            // for documents of all regions
	regions map[string][]*x509.Certificate // by region; takes precedence
}

var _ cloud.Identities = (*EC2)(nil)

var accounts = regexp.MustCompile(`^[0-9]{12}$`)

// NewEC2 returns a verifier for the instances of an account, with the public certificates of AWS at a path. A file
// has the certificates of all regions. A folder has one file for each region, such as eu-west-1.pem, whose
// certificates count for this region alone.
func NewEC2(account, path string) (*EC2, error) {
	if !accounts.MatchString(account) {
		return nil, fmt.Errorf("account %q: must be the 12 digits of an AWS account", account)
	}
	e := &EC2{account: account, regions: map[string][]*x509.Certificate{}}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	if !info.IsDir() {
		e.all, err = readCertificates(path)
		return e, err
	}
	files, err := filepath.Glob(filepath.Join(path, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("certificates: folder %s has no file such as eu-west-1.pem", path)
	}
	for _, file := range files {
		region := strings.TrimSuffix(filepath.Base(file), ".pem")
		if e.regions[region], err = readCertificates(file); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// readCertificates reads the certificates of a PEM file. Those with other keys than RSA are an error: AWS publishes
// a DSA certificate for each region as well, which belongs to another signature.
func readCertificates(path string) (list []*x509.Certificate, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificates: %s: %w", path, err)
		}
		if _, ok := c.PublicKey.(*rsa.PublicKey); !ok {
			return nil, fmt.Errorf("certificates: %s: certificate of %s has no RSA key; take the certificate that AWS "+
				"lists under RSA", path, c.Subject)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("certificates: %s has no certificate in PEM", path)
	}
	return list, nil
}

// Source implements cloud.Identities.
func (e *EC2) Source() wire.IdentitySource { return wire.IdentityEC2 }

// ec2Document is the part of an identity document that Berth compares.
type ec2Document struct {
	Account  string `json:"accountId"`
	Instance string `json:"instanceId"`
	Region   string `json:"region"`
	Zone     string `json:"availabilityZone"`
}

// Verify implements cloud.Identities. The certificates are chosen by the region of the launch, which the document
// cannot change.
func (e *EC2) Verify(_ context.Context, id wire.Identity, d cloud.Demand, now time.Time) (cloud.Claims, error) {
	signature, err := base64.StdEncoding.DecodeString(id.Signature)
	if err != nil || id.Document == "" || len(signature) == 0 {
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMalformed,
			"the identity has no document, or no signature in base64")
	}
	list, ok := e.regions[d.Launch.Region]
	if !ok {
		list = e.all
	}
	switch err := signed(list, []byte(id.Document), signature, now); {
	case errors.Is(err, errNoCertificate):
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityNoKeys,
			"identity document: %v in region %s; try again", err, d.Launch.Region)
	case err != nil:
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityUnsigned, "identity document: %v in region %s", err,
			d.Launch.Region)
	}
	var doc ec2Document
	if err := json.Unmarshal([]byte(id.Document), &doc); err != nil || doc.Instance == "" {
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMalformed, "the identity document has no instanceId")
	}
	if doc.Account != e.account {
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMismatch,
			"the identity names account %q, and the provider's is %s", doc.Account, e.account)
	}
	return cloud.Claims{Instance: doc.Instance, Region: doc.Region, Zone: doc.Zone}, nil
}

// errNoCertificate says that this server cannot verify, which proves nothing about the document.
var errNoCertificate = errors.New("no configured certificate is valid now")

// Lacks returns the regions for which no certificate is configured.
func (e *EC2) Lacks(regions []string) (lacking []string) {
	for _, r := range regions {
		if len(e.regions[r])+len(e.all) == 0 {
			lacking = append(lacking, r)
		}
	}
	return lacking
}

// signed returns an error unless one of the certificates is valid now and its key has signed the document.
func signed(list []*x509.Certificate, document, signature []byte, now time.Time) error {
	sum := sha256.Sum256(document)
	valid := false
	for _, c := range list {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			continue
		}
		valid = true
		key, _ := c.PublicKey.(*rsa.PublicKey)
		if rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil {
			return nil
		}
	}
	if !valid {
		return errNoCertificate
	}
	return errors.New("no configured certificate has signed it")
}
