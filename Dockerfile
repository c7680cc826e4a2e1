# streamco proxy and streamco serve in one image:
#   docker build -t streamco .
#   docker run --rm -p 127.0.0.1:8080:8080 -e OPENAI_API_KEY -e STREAMCO_PROXY_KEY=secret streamco proxy --host 0.0.0.0 --server gpt-4o-mini
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" streamco serve --host 0.0.0.0 --no-auth --model /models/model.gguf
# A host beyond loopback needs a key, or --no-auth; inside a container every address that -p can reach is beyond loopback.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN STREAMCO_BUILD_NATIVE=yes pip wheel --no-cache-dir --wheel-dir /wheels ".[llama,cli,tokens,otel]"

FROM python:3.13-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* && useradd --create-home streamco
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "streamco[llama,cli,tokens,otel]" && rm -rf /wheels
USER streamco
WORKDIR /home/streamco
EXPOSE 8000 8080
ENTRYPOINT ["streamco"]
CMD ["--help"]
