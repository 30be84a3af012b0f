{{- define "tollgate.labels" -}}
{ app.kubernetes.io/name: tollgate, app.kubernetes.io/instance: {{ .Release.Name }} }
{{- end }}
{{- define "tollgate.secret" -}}
{{ .Values.secret.existing | default .Release.Name }}
{{- end }}
