package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// The formats of signatures and attestations in a registry
// (https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md and ATTESTATION_SPEC.md there).
const (
	signatureSuffix      = "sig"
	attestationSuffix    = "att"
	simpleSigningType    = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	dsseEnvelopeType     = types.MediaType("application/vnd.dsse.envelope.v1+json")
	intotoType           = "application/vnd.in-toto+json"
	signatureAnnotation  = "dev.cosignproject.cosign/signature"
	predicateAnnotation  = "predicateType"
	signaturePasswordEnv = "COSIGN_PASSWORD"
)

// signer signs with a key of the curve P-256, the kind that `cosign generate-key-pair` creates. The same key and message
// always give the same signature (RFC 6979), so that a repeated push changes nothing.
type signer struct{ key *ecdsa.PrivateKey }

// readSigner reads a private key in PEM: the encrypted format of cosign, with the password in COSIGN_PASSWORD, or PKCS 8
// without password.
func readSigner(file string) (*signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(text, cryptoutils.StaticPasswordFunc([]byte(os.Getenv(signaturePasswordEnv))))
	if err != nil {
		return nil, fmt.Errorf("key %s: %w (the password of an encrypted key is read from %s)", file, err, signaturePasswordEnv)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, fmt.Errorf("key %s: must be an ECDSA key of the curve P-256, as cosign generate-key-pair creates it", file)
	}
	return &signer{ec}, nil
}

// sign returns the signature of a message in base64.
func (s *signer) sign(message []byte) (string, error) {
	digest := sha256.Sum256(message)
	signature, err := s.key.Sign(nil, digest[:], crypto.SHA256)
	return base64.StdEncoding.EncodeToString(signature), err
}

// signaturePart is one signature or attestation, as a layer of the image that cosign reads.
type signaturePart struct {
	suffix      string // of the tag
	layer       v1.Layer
	annotations map[string]string
}

// signImage returns the signature of an image or chart.
func (s *signer) signImage(image name.Digest) (signaturePart, error) {
	text, err := payload.Cosign{Image: image}.MarshalJSON()
	if err != nil {
		return signaturePart{}, err
	}
	signature, err := s.sign(text)
	return signaturePart{signatureSuffix, static.NewLayer(text, simpleSigningType), map[string]string{signatureAnnotation: signature}}, err
}

// attest returns an in-toto statement in a signed envelope (https://github.com/secure-systems-lab/dsse).
func (s *signer) attest(statement []byte, predicateType string) (signaturePart, error) {
	signature, err := s.sign(dsse.PAE(intotoType, statement))
	if err != nil {
		return signaturePart{}, err
	}
	envelope, err := json.Marshal(dsse.Envelope{
		PayloadType: intotoType,
		Payload:     base64.StdEncoding.EncodeToString(statement),
		Signatures:  []dsse.Signature{{Sig: signature}},
	})
	annotations := map[string]string{signatureAnnotation: "", predicateAnnotation: predicateType}
	return signaturePart{attestationSuffix, static.NewLayer(envelope, dsseEnvelopeType), annotations}, err
}

// emptySignatures returns an image without signatures or attestations.
func emptySignatures() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// appendPart returns an image with one more signature or attestation. It returns false if the image already has it. Other
// people's signatures stay.
func appendPart(image v1.Image, part signaturePart) (v1.Image, bool, error) {
	digest, err := part.layer.Digest()
	if err != nil {
		return nil, false, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, false, err
	}
	for _, layer := range manifest.Layers {
		if layer.Digest == digest && layer.Annotations[signatureAnnotation] == part.annotations[signatureAnnotation] {
			return image, false, nil
		}
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: part.layer, Annotations: part.annotations})
	return image, true, err
}

// signatureTag returns the tag where cosign looks for the signatures or attestations of an image.
func signatureTag(image name.Digest, suffix string) (name.Tag, error) {
	digest, err := v1.NewHash(image.DigestStr())
	return image.Context().Tag(digest.Algorithm + "-" + digest.Hex + "." + suffix), err
}
