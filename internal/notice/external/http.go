package external

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// httpService is an HTTP URL. GET reads the document, and POST acknowledges a notice.
type httpService struct {
	client *poll.Client
	url    string
}

func (h httpService) read(ctx context.Context) ([]byte, error) {
	response, err := h.client.Send(ctx, http.MethodGet, h.url, http.Header{"Accept": {"application/json"}}, nil)
	if err != nil {
		return nil, err
	}
	return response.Body, response.Err()
}

// acknowledgement is the body of an acknowledgement.
type acknowledgement struct {
	APIVersion  string `json:"apiVersion"`
	Acknowledge string `json:"acknowledge"`
}

func (h httpService) acknowledge(ctx context.Context, id string) error {
	body, err := json.Marshal(acknowledgement{APIVersion, id})
	if err != nil {
		return err
	}
	response, err := h.client.Send(ctx, http.MethodPost, h.url, http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil {
		return err
	}
	if response.Status == http.StatusNoContent || response.Status == http.StatusAccepted {
		return nil
	}
	return response.Err()
}
