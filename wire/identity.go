package wire

// SlugIdentityRefused is the stable code of a refused join of a launched machine whose identity does not prove
// that it is the launch's instance.
const SlugIdentityRefused = "identity_refused"

// IdentitySource is a cloud that signs the identities of its instances.
type IdentitySource string

// The sources of identities.
const (
	IdentityEC2 IdentitySource = "ec2" // the identity document of an EC2 instance, with its RSA signature
	IdentityGCE IdentitySource = "gce" // an identity token of the metadata server of GCE
)

// MaxIdentity bounds the texts of an Identity together, in bytes. Documents and tokens have about 2 KiB.
const MaxIdentity = 16 << 10

// Identity is a document about this machine that its cloud has signed. The agent reads it from the metadata
// service of the machine and sends it unchanged.
type Identity struct {
	Source IdentitySource `json:"source"`
	// Document and Signature belong to EC2: the identity document, byte for byte, and the base64 text of its
	// signature.
	Document  string `json:"document,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Token belongs to GCE: a JSON Web Token.
	Token string `json:"token,omitempty"`
}

// Size returns the length of the texts in bytes.
func (i Identity) Size() int { return len(i.Document) + len(i.Signature) + len(i.Token) }
